//! Classic BPF programs: which packets a socket takes, and which worker gets them.

use crate::sys::Instruction;
use std::io;

/// A field of the packet and the value it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldMatch {
    /// Where the field begins in the packet.
    pub offset: u32,
    pub width: Width,
    /// The bits that count.
    pub mask: u32,
    /// Their value, the field taken as a number in network byte order.
    pub value: u32,
}

/// The length of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    One,
    Two,
    Four,
}

impl Width {
    pub fn bytes(self) -> u32 {
        match self {
            Width::One => 1,
            Width::Two => 2,
            Width::Four => 4,
        }
    }
}

/// A part of a field that numbers the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    pub offset: u32,
    pub width: Width,
    /// The field, in network byte order, is masked first and then shifted to the right.
    pub mask: u32,
    pub shift: u32,
}

/// Alternatives of one filter: the kernel takes programs of 4096 instructions, and each costs time for every packet.
pub const MOST_ALTERNATIVES: usize = 512;

const LD: u16 = 0x00;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;
const ABS: u16 = 0x20;
const LEN: u16 = 0x80;
const AND: u16 = 0x50;
const RSH: u16 = 0x70;
const JEQ: u16 = 0x10;
const JGE: u16 = 0x30;
const ACCUMULATOR: u16 = 0x10;

/// Takes the whole packet.
const WHOLE: u32 = u32::MAX;

fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, k }
}

fn jump(code: u16, k: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code: JMP | code, jump_true, jump_false, k }
}

fn load(width: Width, offset: u32) -> Instruction {
    let size = match width {
        Width::Four => 0x00,
        Width::Two => 0x08,
        Width::One => 0x10,
    };
    plain(LD | ABS | size, offset)
}

/// A program that takes packets to which one of the alternatives applies; all, if there is none.
///
/// # Errors
/// There are more than [`MOST_ALTERNATIVES`].
pub(super) fn accepting(alternatives: &[FieldMatch]) -> io::Result<Vec<Instruction>> {
    if alternatives.len() > MOST_ALTERNATIVES {
        let what = format!("{} alternatives for arriving packets, at most {MOST_ALTERNATIVES}", alternatives.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if alternatives.is_empty() {
        return Ok(vec![plain(RET, WHOLE)]);
    }
    let mut program = Vec::with_capacity(alternatives.len() * 6 + 1);
    for one in alternatives {
        program.extend([
            // A load beyond the end would end the program, and the alternatives after it would not be tried.
            plain(LD | LEN, 0),
            jump(JGE, one.offset.saturating_add(one.width.bytes()), 0, 4),
            load(one.width, one.offset),
            plain(ALU | AND, one.mask),
            jump(JEQ, one.value & one.mask, 0, 1),
            plain(RET, WHOLE),
        ]);
    }
    program.push(plain(RET, 0));
    Ok(program)
}

/// A program that gives the number of a worker.
pub(super) fn steering(field: Steering) -> [Instruction; 4] {
    [
        load(field.width, field.offset),
        plain(ALU | AND, field.mask),
        plain(ALU | RSH, field.shift.min(31)),
        plain(RET | ACCUMULATOR, 0),
    ]
}
