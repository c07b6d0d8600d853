//! The program that runs in the kernel for every frame that arrives: frames of our EtherType go to the socket of their receive queue, all
//! others their usual way.
//!
//! It is written here instruction by instruction, so that neither a compiler for BPF nor an object file is needed.

/// Registers.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;

/// Opcodes, as `linux/bpf.h` composes them.
const LOAD_U32: u8 = 0x61;
const LOAD_U16: u8 = 0x69;
const MOVE: u8 = 0xbf;
const MOVE_CONSTANT: u8 = 0xb7;
const ADD_CONSTANT: u8 = 0x07;
const LOAD_CONSTANT_64: u8 = 0x18;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_UNLESS_CONSTANT: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// In `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RECEIVE_QUEUE: i16 = 16;

const ETHERNET_HEADER_BYTES: i32 = 14;
const ETHERTYPE_AT: i16 = 12;

const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;

/// Says that the constant is the number of a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

/// One instruction: opcode, target and source register, offset, constant, from the lowest byte up.
const fn instruction(code: u8, target: u8, source: u8, offset: i16, constant: i32) -> u64 {
    code as u64
        | (target as u64) << 8
        | (source as u64) << 12
        | (offset as u16 as u64) << 16
        | (constant as u32 as u64) << 32
}

/// The program for a map of sockets, by the number of its descriptor.
pub(super) fn redirecting(ethertype: u16, map: i32) -> [u64; 15] {
    // As the two bytes of the frame read on this machine.
    let ethertype = i32::from(u16::from_ne_bytes(ethertype.to_be_bytes()));
    [
        instruction(LOAD_U32, R2, R1, DATA, 0),
        instruction(LOAD_U32, R3, R1, DATA_END, 0),
        instruction(MOVE, R4, R2, 0, 0),
        instruction(ADD_CONSTANT, R4, 0, 0, ETHERNET_HEADER_BYTES),
        // Frames that are too short, or of another type, jump to the two instructions at the end.
        instruction(JUMP_IF_GREATER, R4, R3, 8, 0),
        instruction(LOAD_U16, R4, R2, ETHERTYPE_AT, 0),
        instruction(JUMP_UNLESS_CONSTANT, R4, 0, 6, ethertype),
        instruction(LOAD_U32, R2, R1, RECEIVE_QUEUE, 0),
        // A constant of 64 bits takes two places.
        instruction(LOAD_CONSTANT_64, R1, PSEUDO_MAP_FD, 0, map),
        0,
        // Where the queue has no socket the frame goes its usual way.
        instruction(MOVE_CONSTANT, R3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
        instruction(MOVE_CONSTANT, R0, 0, 0, XDP_PASS),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_kernel_reads_them() {
        // r4 > r3: 8 further; and the EtherType in the order of its bytes.
        let program = redirecting(0x88b5, 7);
        assert_eq!(program[4].to_le_bytes(), [0x2d, 0x34, 8, 0, 0, 0, 0, 0]);
        assert_eq!(program[6].to_le_bytes(), [0x55, 4, 6, 0, 0x88, 0xb5, 0, 0]);
        assert_eq!(program[8].to_le_bytes(), [0x18, 0x11, 0, 0, 7, 0, 0, 0]);
    }
}
