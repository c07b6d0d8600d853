//! Instructions of classic BPF.

use super::Instruction;
use crate::steering::Width;

pub const LD: u16 = 0x00;
pub const ALU: u16 = 0x04;
pub const JMP: u16 = 0x05;
pub const RET: u16 = 0x06;
pub const ABS: u16 = 0x20;
pub const LEN: u16 = 0x80;
pub const AND: u16 = 0x50;
pub const MOD: u16 = 0x90;
pub const RSH: u16 = 0x70;
pub const JEQ: u16 = 0x10;
pub const JGE: u16 = 0x30;
pub const ACCUMULATOR: u16 = 0x10;

/// Takes the whole packet.
pub const WHOLE: u32 = u32::MAX;

pub fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, k }
}

pub fn jump(code: u16, k: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code: JMP | code, jump_true, jump_false, k }
}

pub fn load(width: Width, offset: u32) -> Instruction {
    let size = match width {
        Width::Four => 0x00,
        Width::Two => 0x08,
        Width::One => 0x10,
    };
    plain(LD | ABS | size, offset)
}
