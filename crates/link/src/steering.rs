//! Which of several links that share an address gets a packet: a number out of the packet itself, computed by the kernel.

use crate::sys::Instruction;
use crate::sys::program::{ACCUMULATOR, ALU, AND, JEQ, MOD, RET, RSH, jump, load, plain};

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

/// A part of a packet, taken as a number in network byte order, masked first and then shifted to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub offset: u32,
    pub width: Width,
    pub mask: u32,
    pub shift: u32,
}

/// A part of the packet that numbers the members of a group, and another for packets that are for no member in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    pub member: Part,
    /// Where the first part has all its bits set, this one decides; the same for all packets that must meet.
    pub otherwise: Option<Part>,
}

impl Steering {
    /// A program that gives the number of the member; modulo `members` where the kernel does not do that itself. A packet too short for its part goes to member 0.
    pub(crate) fn program(self, members: Option<u32>) -> Vec<Instruction> {
        let take = |part: Part| {
            [load(part.width, part.offset), plain(ALU | AND, part.mask), plain(ALU | RSH, part.shift.min(31))]
        };
        let mut program = take(self.member).to_vec();
        if let Some(other) = self.otherwise {
            program.push(jump(JEQ, self.member.mask >> self.member.shift.min(31), 0, 3));
            program.extend(take(other));
        }
        program.extend(members.map(|members| plain(ALU | MOD, members.max(1))));
        program.push(plain(RET | ACCUMULATOR, 0));
        program
    }
}
