//! The program that runs in the kernel for every frame that arrives: frames of our EtherType that the link accepts go to the socket of their receive
//! queue, all others their usual way.
//!
//! It is written here instruction by instruction, so that neither a compiler for BPF nor an object file is needed.

use crate::packet::{FieldMatch, not_too_many};
use crate::steering::Width;
use std::io;

/// Registers.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;

/// Opcodes, as `linux/bpf.h` composes them.
const LOAD_U32: u8 = 0x61;
const LOAD_U16: u8 = 0x69;
const LOAD_U8: u8 = 0x71;
const MOVE: u8 = 0xbf;
const MOVE_CONSTANT: u8 = 0xb7;
const ADD_CONSTANT: u8 = 0x07;
const LOAD_CONSTANT_64: u8 = 0x18;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_UNLESS_CONSTANT: u8 = 0x55;
const JUMP: u8 = 0x05;
/// Of the lower 32 bits; the upper ones become zero.
const AND_CONSTANT_32: u8 = 0x54;
const JUMP_UNLESS_CONSTANT_32: u8 = 0x56;
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

/// The instructions that look whether a frame has one field, and go on behind all of these if so.
const PER_ALTERNATIVE: usize = 7;

/// Instructions from the first that looks at what the link accepts to the one that lets the frame pass, if there are no alternatives.
const REDIRECTION: usize = 6;

/// The program for a map of sockets, by the number of its descriptor, and packets to which one of the alternatives applies; all, if there is none.
///
/// # Errors
/// There are too many alternatives, or one is about bytes beyond any frame.
pub(super) fn redirecting(ethertype: u16, map: i32, alternatives: &[FieldMatch]) -> io::Result<Vec<u64>> {
    not_too_many(alternatives)?;
    // Where no alternative applies one more instruction leads past the redirection.
    let looks = if alternatives.is_empty() { 0 } else { alternatives.len() * PER_ALTERNATIVE + 1 };
    let to_pass = (looks + REDIRECTION) as i16;
    // As the two bytes of the frame read on this machine.
    let ethertype = i32::from(u16::from_ne_bytes(ethertype.to_be_bytes()));
    let mut program = vec![
        instruction(LOAD_U32, R2, R1, DATA, 0),
        instruction(LOAD_U32, R3, R1, DATA_END, 0),
        instruction(MOVE, R4, R2, 0, 0),
        instruction(ADD_CONSTANT, R4, 0, 0, ETHERNET_HEADER_BYTES),
        // Frames that are too short, or of another type, jump to the two instructions at the end.
        instruction(JUMP_IF_GREATER, R4, R3, to_pass + 2, 0),
        instruction(LOAD_U16, R4, R2, ETHERTYPE_AT, 0),
        instruction(JUMP_UNLESS_CONSTANT, R4, 0, to_pass, ethertype),
    ];
    for (number, one) in alternatives.iter().enumerate() {
        let behind_all = looks - (number + 1) * PER_ALTERNATIVE;
        program.extend(alternative(one, behind_all as i16)?);
    }
    if looks > 0 {
        program.push(instruction(JUMP, 0, 0, REDIRECTION as i16, 0));
    }
    program.extend([
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
    ]);
    Ok(program)
}

fn alternative(one: &FieldMatch, behind_all: i16) -> io::Result<[u64; PER_ALTERNATIVE]> {
    let at = i16::try_from(i64::from(one.offset) + i64::from(ETHERNET_HEADER_BYTES)).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("no frame is long enough for a field at {}", one.offset))
    })?;
    // Field and constants as they read on this machine.
    let short = |value: u32| u32::from(u16::from_ne_bytes((value as u16).to_be_bytes()));
    let (load, [mask, value]) = match one.width {
        Width::One => (LOAD_U8, [one.mask, one.value].map(|value| value & 0xFF)),
        Width::Two => (LOAD_U16, [one.mask, one.value].map(short)),
        Width::Four => (LOAD_U32, [one.mask, one.value].map(|value| u32::from_ne_bytes(value.to_be_bytes()))),
    };
    Ok([
        instruction(MOVE, R4, R2, 0, 0),
        instruction(ADD_CONSTANT, R4, 0, 0, i32::from(at) + one.width.bytes() as i32),
        instruction(JUMP_IF_GREATER, R4, R3, 4, 0),
        instruction(load, R4, R2, at, 0),
        instruction(AND_CONSTANT_32, R4, 0, 0, mask as i32),
        instruction(JUMP_UNLESS_CONSTANT_32, R4, 0, 1, (value & mask) as i32),
        instruction(JUMP, 0, 0, behind_all, 0),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_kernel_reads_them() {
        // r4 > r3: 8 further; and the EtherType in the order of its bytes.
        let program = redirecting(0x88b5, 7, &[]).unwrap();
        assert_eq!(program[4].to_le_bytes(), [0x2d, 0x34, 8, 0, 0, 0, 0, 0]);
        assert_eq!(program[6].to_le_bytes(), [0x55, 4, 6, 0, 0x88, 0xb5, 0, 0]);
        assert_eq!(program[8].to_le_bytes(), [0x18, 0x11, 0, 0, 7, 0, 0, 0]);
    }
}
