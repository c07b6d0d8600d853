//! The ranks of one transport: started together, joined, given trials, ended. When one of them fails, none is of use any more.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::control::{Hello, Order, Reply};
use super::job::Job;
use super::member::{Fault, Member, can_be_heard, wait_for_any};
use super::start::STATS;
use crate::pattern::Trial;
use crate::record::{Host, Series};
use crate::transport::kind::Setting;
use crate::transport::monotonic_ns;

/// Between the failure of one rank and the end of the others' time to answer: what they say may be the cause.
const AFTER_A_FAULT: Duration = Duration::from_millis(300);

/// For a rank to say goodbye, statistics written.
const LEAVING: Duration = Duration::from_secs(5);

/// Exchanges of clock readings with each rank; the fastest bound its offset most closely.
const CLOCK_EXCHANGES: u32 = 200;

/// Ranks 0..n-1 of one transport.
#[derive(Debug)]
pub struct Group {
    members: Vec<Member>,
    /// Of the ranks that said what machine they run on.
    pub hosts: Vec<Host>,
    // After the members: these go when they have ended.
    job: Option<Job>,
    scratch: Option<TempDir>,
}

/// What is asked while the group waits: whether to break off.
pub type BrokenOff<'a> = &'a dyn Fn() -> bool;

impl Group {
    /// Waits until all ranks have said who they are. Those that something else has numbered are put in that order.
    pub fn assemble(
        members: Vec<Member>,
        scratch: Option<TempDir>,
        limit: Duration,
        broken_off: BrokenOff,
    ) -> Result<Group, Fault> {
        let mut group = Group { members, hosts: Vec::new(), job: None, scratch };
        let replies = group.gather(limit, broken_off)?;
        let mut numbers = Vec::new();
        for (member, reply) in group.members.iter().zip(replies) {
            let Reply::Hello(hello) = reply else { return Err(unexpected(member)) };
            if !hello.fits() {
                return Err(Fault::Start(format!(
                    "{} runs ropeway {} (control {}), and this is {} (control {}): install the same version on all hosts",
                    member.name,
                    hello.version,
                    hello.control,
                    Hello::plain().version,
                    Hello::plain().control
                )));
            }
            numbers.push((hello.rank, hello.host));
        }
        group.in_order(numbers)
    }

    /// With the launcher that has started the ranks, which ends after them.
    pub fn with_job(self, job: Job) -> Group {
        Group { job: Some(job), ..self }
    }

    /// Where other ranks reach that one, as far as its connection to us shows it.
    pub fn address(&self, rank: usize) -> Option<&str> {
        self.members.get(rank)?.address()
    }

    /// Opens the transport in all ranks. `settings` and `cpus` are by rank.
    pub fn open(
        &mut self,
        settings: &[Setting],
        cpus: &[Option<usize>],
        limit: Duration,
        broken_off: BrokenOff,
    ) -> Result<(), Fault> {
        for ((member, setting), cpu) in self.members.iter_mut().zip(settings).zip(cpus) {
            member.tell(&Order::Open { setting: setting.clone(), cpu: *cpu })?;
        }
        let mut addresses = Vec::new();
        for reply in self.gather(limit, broken_off)? {
            let Reply::Listening { address } = reply else { return Err(unexpected(&self.members[addresses.len()])) };
            addresses.push(address);
        }
        self.tell_all(&Order::Connect { addresses })?;
        let replies = self.gather(limit, broken_off)?;
        match replies.iter().position(|reply| *reply != Reply::Ready) {
            Some(rank) => Err(unexpected(&self.members[rank])),
            None => Ok(()),
        }
    }

    /// Has all ranks do one trial; the series of each rank.
    pub fn trial(&mut self, trial: &Trial, limit: Duration, broken_off: BrokenOff) -> Result<Vec<Vec<Series>>, Fault> {
        self.tell_all(&Order::Trial(trial.clone()))?;
        let replies = self.gather(limit, broken_off)?;
        let series = replies.into_iter().zip(&self.members).map(|(reply, member)| match reply {
            Reply::Measured { series } => Ok(series),
            _ => Err(unexpected(member)),
        });
        series.collect()
    }

    /// For each rank between which bounds its clock is ahead of that of rank 0, in nanoseconds.
    pub fn clock_offsets(&mut self, limit: Duration) -> Result<Vec<(f64, f64)>, Fault> {
        let against_us: Result<Vec<_>, Fault> =
            (0..self.members.len()).map(|rank| self.clock_offset(rank, limit)).collect();
        let against_us = against_us?;
        let Some((low_0, high_0)) = against_us.first().copied() else { return Ok(Vec::new()) };
        let against_0 = against_us.iter().map(|(low, high)| (low - high_0, high - low_0));
        Ok(std::iter::once((0.0, 0.0)).chain(against_0.skip(1)).collect())
    }

    /// A reading was taken after we asked for it and before we had it: each exchange bounds the offset, and all bounds hold at once.
    fn clock_offset(&mut self, rank: usize, limit: Duration) -> Result<(f64, f64), Fault> {
        let member = &mut self.members[rank];
        let deadline = Instant::now() + limit;
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        for _ in 0..CLOCK_EXCHANGES {
            let asked = monotonic_ns();
            member.tell(&Order::Clock)?;
            let reply = loop {
                if !wait_for_any(std::iter::once(&*member), deadline) && Instant::now() >= deadline {
                    return Err(member.late(limit));
                }
                if can_be_heard(member)
                    && let Some(reply) = member.heard()?
                {
                    break reply;
                }
            };
            let answered = monotonic_ns();
            let Reply::Clock { ns } = reply else { return Err(unexpected(member)) };
            low = low.max(ns as f64 - answered as f64);
            high = high.min(ns as f64 - asked as f64);
        }
        Ok((low, high))
    }

    /// Ends the ranks; the file with the statistics of preloaded ones, which goes with what is returned beside it.
    pub fn leave(self) -> (Option<PathBuf>, Option<TempDir>) {
        let Group { mut members, scratch, job, .. } = self;
        if let Some(job) = job {
            for member in &mut members {
                // One that has failed is gone already.
                let _ = member.tell(&Order::Bye);
            }
            // The members stay until then: a rank whose coordinator is gone ends at once, and not as it should.
            job.leave(LEAVING);
        }
        for member in members {
            member.leave(LEAVING);
        }
        (scratch.as_ref().map(|scratch| scratch.path().join(STATS)), scratch)
    }

    /// Puts the members in the order of these numbers, if they have some.
    fn in_order(mut self, told: Vec<(Option<usize>, Option<Host>)>) -> Result<Group, Fault> {
        let mut numbered = Vec::new();
        for (place, (member, (number, host))) in std::mem::take(&mut self.members).into_iter().zip(told).enumerate() {
            numbered.push((number.unwrap_or(place), number.is_some(), member, host));
        }
        numbered.sort_by_key(|(rank, ..)| *rank);
        for (place, (rank, is_told, mut member, host)) in numbered.into_iter().enumerate() {
            if rank != place {
                return Err(Fault::Start(format!(
                    "the launcher has numbered a rank {rank} where {place} was expected: is it the one of this MPI?"
                )));
            }
            if is_told {
                member.name = format!("rank {rank}");
            }
            self.members.push(member);
            self.hosts.extend(host);
        }
        Ok(self)
    }

    fn tell_all(&mut self, order: &Order) -> Result<(), Fault> {
        self.members.iter_mut().try_for_each(|member| member.tell(order))
    }

    /// One answer of each rank, in their order. When one fails, the weightiest of the faults.
    fn gather(&mut self, limit: Duration, broken_off: BrokenOff) -> Result<Vec<Reply>, Fault> {
        /// A signal may come between our look at what it sets and the wait.
        const LOOK_AGAIN: Duration = Duration::from_millis(250);
        let mut deadline = Instant::now() + limit;
        let mut replies: Vec<Option<Reply>> = self.members.iter().map(|_| None).collect();
        let mut faults: Vec<(usize, Fault)> = Vec::new();
        loop {
            let open = |rank: &usize, replies: &[Option<Reply>], faults: &[(usize, Fault)]| {
                replies[*rank].is_none() && faults.iter().all(|(faulty, _)| faulty != rank)
            };
            let silent: Vec<usize> = (0..self.members.len()).filter(|rank| open(rank, &replies, &faults)).collect();
            if silent.is_empty() || Instant::now() >= deadline {
                faults.extend(silent.into_iter().map(|rank| (rank, self.members[rank].late(limit))));
                break;
            }
            if broken_off() {
                return Err(Fault::BrokenOff);
            }
            wait_for_any(silent.iter().map(|rank| &self.members[*rank]), deadline.min(Instant::now() + LOOK_AGAIN));
            for rank in silent {
                if !can_be_heard(&self.members[rank]) {
                    continue;
                }
                match self.members[rank].heard() {
                    Ok(Some(Reply::Failed { reason, refused: true })) => faults.push((rank, Fault::Refused(reason))),
                    Ok(Some(Reply::Failed { reason, refused: false })) => {
                        faults.push((rank, Fault::Failed { name: self.members[rank].name.clone(), reason }));
                    }
                    Ok(reply) => replies[rank] = reply,
                    Err(fault) => faults.push((rank, fault)),
                }
            }
            if !faults.is_empty() {
                deadline = deadline.min(Instant::now() + AFTER_A_FAULT);
            }
        }
        if faults.len() < self.members.len() {
            // Refused by some and begun by others: the others wait in vain.
            for (rank, fault) in &mut faults {
                if let Fault::Refused(reason) = fault {
                    *fault = Fault::Failed { name: self.members[*rank].name.clone(), reason: std::mem::take(reason) };
                }
            }
        }
        // Of equals, the first; a Ctrl-C ends the ranks as well.
        match faults.into_iter().map(|(_, fault)| fault).rev().max_by_key(Fault::weight) {
            Some(_) if broken_off() => Err(Fault::BrokenOff),
            Some(fault) => Err(fault),
            None => Ok(replies.into_iter().flatten().collect()),
        }
    }
}

fn unexpected(member: &Member) -> Fault {
    Fault::Nonsense { name: member.name.clone(), text: "an answer to another order".to_owned(), said: String::new() }
}

#[cfg(test)]
mod tests {
    use super::super::start::threads;
    use super::*;
    use crate::pattern::{Bound, Pattern};
    use crate::transport::memory;

    const LIMIT: Duration = Duration::from_secs(10);

    fn setting(rank: usize) -> Setting {
        Setting {
            transport: "tcp".into(),
            rank,
            ranks: 2,
            host: "127.0.0.1".into(),
            patience_ms: 1000,
            joins_small_sends: false,
        }
    }

    #[test]
    fn threads_are_ranks_like_others() {
        let members = threads(memory::ranks(2)).expect("threads");
        let mut group = Group::assemble(members, None, LIMIT, &|| false).expect("two hellos");
        let offsets = group.clock_offsets(LIMIT).expect("offsets");
        assert!(offsets[1].0 <= 0.0 && offsets[1].1 >= 0.0, "they have one clock: {offsets:?}");
        group.open(&[setting(0), setting(1)], &[None, None], LIMIT, &|| false).expect("open");
        let trial = Trial {
            pattern: Pattern::PingPong { batch: 1 },
            size: 1,
            bound: Bound::Samples(5),
            warm_up_ns: 0,
            seed: 0,
        };
        for _ in 0..2 {
            let series = group.trial(&trial, LIMIT, &|| false).expect("a trial");
            assert_eq!((series[0].len(), series[1].len()), (1, 0));
        }
        group.leave();
    }

    #[test]
    fn who_is_silent_is_late_and_who_has_gone_is_gone() {
        let (a, b) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let member = || {
            Member::new("rank 0".into(), a.try_clone().expect("a copy").into(), a.try_clone().expect("a copy").into())
        };
        let limit = Duration::from_millis(20);
        let fault = Group::assemble(vec![member()], None, limit, &|| false).expect_err("nothing was said");
        assert_eq!(fault, Fault::Late { name: "rank 0".into(), limit, said: String::new() });
        assert_eq!(Group::assemble(vec![member()], None, limit, &|| true).expect_err("broken off"), Fault::BrokenOff);
        drop(b);
        let fault = Group::assemble(vec![member()], None, LIMIT, &|| false).expect_err("closed");
        assert_eq!(fault, Fault::Gone { name: "rank 0".into(), said: String::new() });
    }

    #[test]
    fn another_version_is_refused() {
        let (a, mut b) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let hello = Hello { version: "0.0.1".into(), ..Hello::plain() };
        super::super::control::say(&mut b, &Reply::Hello(Box::new(hello))).expect("said");
        let member = Member::new("rank 0 on far".into(), a.try_clone().expect("a copy").into(), a.into());
        let fault = Group::assemble(vec![member], None, LIMIT, &|| false).expect_err("refused").to_string();
        assert!(
            fault.contains("0.0.1") && fault.contains("rank 0 on far") && fault.contains("same version"),
            "{fault}"
        );
    }
}
