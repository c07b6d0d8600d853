//! Packets for which the peer had no memory, and which were withdrawn (docs/protocol.md 5.11): their numbers bring nothing, and the peer has to hear that.

use ropeway_wire::{BlockWriter, Type, Void};

use super::{NOBODY, Packet, Sent};

impl Packet {
    /// What stands in the place of one that was withdrawn: the first of so many in a row, and so far on is the next number that its channel may use.
    fn void(channel: u16, run: u16, until: u16) -> Packet {
        Packet { channel, back: until, void_run: run, transmitted: true, ..Packet::new(Type::Data, NOBODY) }
    }

    /// Whether it was withdrawn.
    pub fn is_void(&self) -> bool {
        self.void_run > 0
    }
}

impl Sent {
    /// Under which numbers a channel has sent something, from this one on.
    pub fn numbers_of(&self, owner: u32, first: u64) -> Vec<u64> {
        let begin = first.wrapping_sub(self.una);
        let packets = (begin..).zip(self.packets.range(begin as usize..));
        packets.filter(|(_, packet)| packet.owner == owner).map(|(at, _)| self.una.wrapping_add(at)).collect()
    }

    /// Withdraws what was sent under these numbers of one channel, the newest ones that it has, and gives it back in their order. The peer is to be told.
    pub fn withdraw(&mut self, numbers: &[u64]) -> Vec<Packet> {
        let next = self.next();
        let mut withdrawn = Vec::with_capacity(numbers.len());
        let (mut behind, mut run) = (next, 0);
        for &number in numbers.iter().rev() {
            let Some(packet) = self.get_mut(number) else { continue };
            run = if number.wrapping_add(1) == behind { run + 1 } else { 1 };
            behind = number;
            let until = next.wrapping_sub(number) as u16;
            let packet = std::mem::replace(packet, Packet::void(packet.channel, run, until));
            self.unseen_bytes -= if packet.transmitted { 0 } else { packet.payload.len() as u64 };
            withdrawn.push(packet);
        }
        withdrawn.reverse();
        let mut before = None;
        for &number in numbers {
            let begins_run = before.replace(number.wrapping_add(1)) != Some(number);
            if begins_run {
                self.request(number, 1, None);
            }
        }
        withdrawn
    }

    /// Whether the peer is to be told of something that was withdrawn.
    pub fn has_voids_to_tell(&self) -> bool {
        !self.voids.is_empty()
    }

    /// Nothing can be told any more.
    pub fn forget_voids(&mut self) {
        self.voids.clear();
    }

    /// VOID blocks; says of how many in line these are all.
    pub fn write_voids(&self, blocks: &mut BlockWriter<'_>) -> usize {
        for (done, &number) in self.voids.iter().enumerate() {
            // Others have been acknowledged meanwhile.
            let Some(packet) = self.get(number).filter(|packet| packet.is_void()) else { continue };
            let Packet { channel, void_run: count, back: until, .. } = *packet;
            if !blocks.void(&Void { channel, low: number as u32, count, until }) {
                return done;
            }
        }
        self.voids.len()
    }

    /// The peer was told of so many in line.
    pub fn told_voids(&mut self, count: usize) {
        for number in self.voids.drain(..count) {
            // It may have been acknowledged meanwhile.
            if let Some(packet) = self.packets.get_mut(number.wrapping_sub(self.una) as usize) {
                packet.requested = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use ropeway_wire::{Block, Blocks};

    const OURS: u32 = 3;

    /// Packets of channel 6, and where there is none of it of another, under the numbers from `first` on.
    fn sent(pool: &mut Pool, first: u64, of_ours: &[bool]) -> Sent {
        let mut sent = Sent::starting_at(first);
        for &is_ours in of_ours {
            let (owner, channel) = if is_ours { (OURS, 6) } else { (OURS + 1, 8) };
            let mut payload = pool.take().unwrap();
            payload.append(&[7; 10], 10);
            sent.push(Packet { payload, channel, transmitted: true, ..Packet::new(Type::Data, owner) });
        }
        sent
    }

    /// What is told now, in how many bytes.
    fn told(sent: &mut Sent, most_bytes: usize) -> Vec<Void> {
        let mut out = vec![0; most_bytes];
        let mut blocks = BlockWriter::new(&mut out);
        let count = sent.write_voids(&mut blocks);
        let used = blocks.len();
        sent.told_voids(count);
        let voids = Blocks::parse(&out[..used]).unwrap();
        voids.map(|block| if let Block::Void(void) = block { void } else { panic!("{block:?}") }).collect()
    }

    #[test]
    fn what_a_channel_sent_is_withdrawn_and_told_in_runs_across_the_wrap() {
        let mut pool = Pool::new(64, 1 << 20);
        let first = u64::MAX - 2;
        let mut sent = sent(&mut pool, first, &[false, true, true, true, false, true, false]);
        // The last of them has not left.
        sent.get_mut(2).unwrap().transmitted = false;
        sent.unseen_bytes = 10;
        let numbers = sent.numbers_of(OURS, u64::MAX);
        assert_eq!(numbers, [u64::MAX, 0, 2]);
        let withdrawn = sent.withdraw(&numbers);
        assert_eq!((withdrawn.len(), sent.unseen_bytes()), (3, 0));
        assert!(withdrawn.iter().all(|packet| packet.owner == OURS && packet.payload.len() == 10));
        let void = |low, count, until| Void { channel: 6, low, count, until };
        assert_eq!(told(&mut sent, 100), [void(u32::MAX, 2, 5), void(2, 1, 2)]);
        assert!(!sent.has_voids_to_tell());
        // Asked for again, a run is said once, from the number asked for on; and nothing of it is sent.
        assert_eq!(sent.request(first, 8, None), 6);
        assert_eq!(std::iter::from_fn(|| sent.take_requested()).collect::<Vec<_>>(), [first, first + 1, 1, 3]);
        assert_eq!(told(&mut sent, 12), [void(u32::MAX, 2, 5)], "no room for another");
        assert_eq!(told(&mut sent, 100), [void(2, 1, 2)]);
        sent.request(0, 1, None);
        assert_eq!(told(&mut sent, 100), [void(0, 1, 4)]);
        // Nobody gets anything for them when they are acknowledged.
        let mut owners = Vec::new();
        assert_eq!(sent.acknowledge(3, |owner, _| owners.push(owner)), Some(6));
        assert_eq!(owners, [OURS + 1, OURS, OURS + 1]);
    }
}
