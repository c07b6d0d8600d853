//! Classic BPF programs: which packets a socket takes, and which worker gets them.

use crate::steering::Width;
use crate::sys::Instruction;
use crate::sys::program::{ALU, AND, JEQ, JGE, LD, LEN, RET, WHOLE, jump, load, plain};
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

impl FieldMatch {
    /// Applies to no packet: none is so long.
    pub const NONE: FieldMatch = FieldMatch { offset: 1 << 24, width: Width::One, mask: 0, value: 0 };
}

/// Alternatives of one filter: the kernel takes programs of 4096 instructions, and each costs time for every packet.
pub const MOST_ALTERNATIVES: usize = 512;

/// A program that takes packets to which one of the alternatives applies; all, if there is none.
///
/// # Errors
/// There are more than [`MOST_ALTERNATIVES`].
pub(super) fn accepting(alternatives: &[FieldMatch]) -> io::Result<Vec<Instruction>> {
    not_too_many(alternatives)?;
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

pub(crate) fn not_too_many(alternatives: &[FieldMatch]) -> io::Result<()> {
    if alternatives.len() > MOST_ALTERNATIVES {
        let what = format!("{} alternatives for arriving packets, at most {MOST_ALTERNATIVES}", alternatives.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(())
}
