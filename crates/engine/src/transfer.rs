//! Calls that send and receive: bytes of a stream, and messages, long ones in parts (docs/engine.md, Long messages).

use std::time::{Duration, Instant};

use ropeway_proto::{ChannelId, Joined, Landing, Part, RecvError, Time};

use crate::blocking::{Attempt, block_for, block_locked};
use crate::core::{Core, READS_OVERDUE_NS};
use crate::engine::{Engine, fatal};
use crate::error::Error;
use crate::inner::Inner;
use crate::wait::Subject;

/// Who waits for less than this gets whole messages: what it has would be put back again and again, and all others wait meanwhile.
const PART_PATIENCE: Duration = Duration::from_secs(1);
/// So long a message that is longer than the send buffer waits for room while nothing of it is acknowledged: then it is kept as a whole, and its sender can do something else.
const REST_PATIENCE: Duration = Duration::from_millis(100);

/// How far a call has come that sends.
#[derive(Default)]
struct Sent {
    bytes: usize,
    /// They are a part of a message.
    is_part: bool,
}

/// Who waits for bytes or a message.
struct Reader<'a> {
    inner: &'a Inner,
    channel: ChannelId,
    out: &'a mut [u8],
    /// So many bytes of a stream are in `out`, or a message.
    landed: Option<usize>,
    /// What is there of a message.
    part: Part,
    /// Others have had the lock since the part began.
    is_seen: bool,
    /// What was kept back has left: whoever waits for an answer wants the question to leave.
    flushed: bool,
}

impl Attempt<Option<usize>> for Reader<'_> {
    fn attempt(&mut self, core: &mut Core, _: Time) -> Option<Result<Option<usize>, Error>> {
        if self.landed.is_some() {
            return Some(Ok(self.landed));
        }
        match self.read(core) {
            Ok(count) => Some(Ok(count)),
            Err(RecvError::WouldBlock) => {
                if !std::mem::replace(&mut self.flushed, true) {
                    core.endpoint.flush(self.channel);
                }
                self.is_seen |= self.part.is_begun;
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    fn land<R>(&mut self, turn: impl FnOnce(&mut Option<Landing<'_>>) -> R) -> R {
        let mut landing = Some(Landing::new(self.channel, self.out));
        let result = turn(&mut landing);
        self.landed = landing.and_then(|landing| landing.filled());
        result
    }
}

impl<'a> Reader<'a> {
    fn new(inner: &'a Inner, channel: ChannelId, out: &'a mut [u8], is_patient: bool) -> Reader<'a> {
        // Who does not wait for long gets messages that are whole.
        let part = Part { is_of_whole: !is_patient, ..Part::default() };
        Reader { inner, channel, out, landed: None, part, is_seen: false, flushed: false }
    }

    /// Reads all that is there.
    fn read(&mut self, core: &mut Core) -> Result<Option<usize>, RecvError> {
        loop {
            let received = core.endpoint.recv_partly(self.channel, self.out, &mut self.part);
            if received != Err(RecvError::WouldBlock) || !self.part.has_more {
                return received;
            }
            self.look_at_links(core);
        }
    }

    /// Between two pieces: nobody is left without grants for as long as it takes to copy a long message.
    fn look_at_links(&self, core: &mut Core) {
        let now = self.inner.now();
        if core.is_overdue(now, READS_OVERDUE_NS) && core.turn(now) {
            // It may have taken what another thread sleeps for.
            self.inner.wake_sleeper(core);
        }
    }

    fn put_back(&self, core: &mut Core) {
        let mut left = core.endpoint.put_back(self.channel, &self.out[..self.part.bytes]);
        while left > 0 {
            self.look_at_links(core);
            left = core.endpoint.put_back(self.channel, &self.out[..left]);
        }
    }

    /// After the last attempt, whose result was this.
    fn end(self, core: &mut Core, is_read: bool) {
        let puts_back = self.part.is_begun && !is_read;
        if puts_back {
            self.put_back(core);
        }
        if !self.is_seen && !puts_back {
            return;
        }
        // Whoever waits for what comes behind it could not read meanwhile, and may poll the links by now.
        self.inner.tell(core);
    }
}

impl Engine {
    /// Sends bytes of a stream (all of them, waiting for room as often as needed), or one message.
    ///
    /// # Errors
    /// The connection ended, or the time is over; `sent` then says how many bytes of a stream were taken.
    pub fn send_all(&self, channel: ChannelId, bytes: &[u8], deadline: Option<Instant>) -> Result<(), (usize, Error)> {
        let inner = self.inner().map_err(|error| (0, error))?;
        let mut core = inner.lock();
        match core.send_at_hand(channel, bytes) {
            Joined::Refused => {}
            Joined::KeptBack => return Ok(()),
            Joined::Due => {
                inner.follow_up(&mut core, inner.now());
                return Ok(());
            }
        }
        let mut sent = Sent::default();
        let mut result = block_locked(inner, core, Subject::Channel(channel), deadline, |core, now| {
            // Of a message that is longer than the send buffer the rest has its own time.
            hand_over(inner, core, now, channel, bytes, &mut sent)
                .or_else(|| sent.is_part.then_some(Err(Error::WouldBlock)))
        });
        if matches!(result, Err(Error::WouldBlock)) {
            result = self.send_rest(inner, channel, bytes, &mut sent, deadline);
        }
        // A message is sent as a whole or not at all.
        result.map_err(|error| (if sent.is_part { 0 } else { sent.bytes }, error))
    }

    /// Hands over the rest of a message as there is room for it; all of it when nothing moves any more, or the time is over: there is memory for it.
    fn send_rest(
        &self,
        inner: &Inner,
        channel: ChannelId,
        bytes: &[u8],
        sent: &mut Sent,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let mut acknowledged = 0;
        loop {
            let patience = Instant::now() + REST_PATIENCE;
            let until = deadline.map_or(patience, |deadline| deadline.min(patience));
            let result = block_locked(inner, inner.lock(), Subject::Channel(channel), Some(until), |core, now| {
                hand_over(inner, core, now, channel, bytes, sent)
            });
            match result {
                Err(Error::TimedOut) => {}
                Err(Error::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
                result => return result,
            }
            let before = acknowledged;
            acknowledged = sent.bytes.saturating_sub(inner.lock().endpoint.unacknowledged_bytes(channel));
            if acknowledged > before && deadline.is_none_or(|deadline| deadline > until) {
                continue;
            }
            return self.attempt(Subject::Channel(channel), |core, now| {
                sent.bytes += core.endpoint.send_rest(now, channel, &bytes[sent.bytes..]);
                if sent.bytes == bytes.len() {
                    return Ok(());
                }
                // The channel has ended meanwhile, and says how.
                let ended = core.endpoint.send_part(now, channel, bytes, sent.bytes);
                Err(ended.map_or_else(Error::from, |_| Error::Closed))
            });
        }
    }

    /// Sends what there is room for: bytes of a stream, or one message.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]; the connection ended.
    pub fn try_send(&self, channel: ChannelId, bytes: &[u8]) -> Result<usize, Error> {
        self.attempt(Subject::Channel(channel), |core, now| Ok(core.endpoint.send(now, channel, bytes)?))
    }

    /// Waits for room and sends one message that is worth sending for `life` only: if it is not under way by then it is dropped, and counted
    /// ([`Engine::expired_messages`]). It shares no packet with others.
    ///
    /// # Errors
    /// As [`Engine::send_all`]; `TimedOut` also if there is no room within its life; [`Error::NoMessages`].
    pub fn send_within(
        &self,
        channel: ChannelId,
        message: &[u8],
        life: Duration,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let until = Instant::now().checked_add(life);
        let deadline = [until, deadline].into_iter().flatten().min();
        let worth_until = self.inner()?.time_of(until);
        self.block(Subject::Channel(channel), deadline, |core, now| {
            match core.endpoint.send_until(now, channel, message, worth_until) {
                Ok(()) => Some(Ok(())),
                Err(error) => fatal(error.into()),
            }
        })
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// As [`Engine::try_send`].
    pub fn try_send_within(&self, channel: ChannelId, message: &[u8], life: Duration) -> Result<(), Error> {
        let worth_until = self.inner()?.time_of(Instant::now().checked_add(life));
        self.attempt(Subject::Channel(channel), |core, now| {
            Ok(core.endpoint.send_until(now, channel, message, worth_until)?)
        })
    }

    /// Drops the messages that are not under way, and says how many. Of a stream nothing is dropped.
    ///
    /// # Errors
    /// The engine cannot be used any more.
    pub fn cancel(&self, channel: ChannelId) -> Result<u64, Error> {
        self.attempt(Subject::Channel(channel), |core, _| {
            let count = core.endpoint.cancel(channel);
            if count > 0 {
                // Who sleeps on the links may wait for that room.
                self.inner()?.wake_sleeper(core);
            }
            Ok(count)
        })
    }

    /// Messages that were dropped because their life was over.
    ///
    /// # Errors
    /// This end has closed the connection.
    pub fn expired_messages(&self, channel: ChannelId) -> Result<u64, Error> {
        self.attempt(Subject::Channel(channel), |core, now| {
            core.endpoint.statistics(now, channel).map(|statistics| statistics.expired_messages).ok_or(Error::Closed)
        })
    }

    /// Waits for bytes of a stream or one message. `None`: the peer has closed, and everything was read.
    ///
    /// # Errors
    /// The connection ended, or the time is over.
    pub fn recv(&self, channel: ChannelId, out: &mut [u8], deadline: Option<Instant>) -> Result<Option<usize>, Error> {
        let inner = self.inner()?;
        let mut core = inner.lock();
        if let Some(count) = core.read_at_hand(channel, out) {
            inner.note_left();
            if core.endpoint.wants_to_transmit() {
                inner.follow_up(&mut core, inner.now());
            }
            return Ok(count);
        }
        let is_patient = deadline.is_none_or(|at| at.saturating_duration_since(Instant::now()) >= PART_PATIENCE);
        let mut reader = Reader::new(inner, channel, out, is_patient);
        let result = block_for(inner, core, Subject::Channel(channel), deadline, &mut reader);
        if reader.part.is_begun {
            reader.end(&mut inner.lock(), matches!(result, Ok(Some(_))));
        }
        result
    }

    /// Reads what there is.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]; the connection ended.
    pub fn try_recv(&self, channel: ChannelId, out: &mut [u8]) -> Result<Option<usize>, Error> {
        let inner = self.inner()?;
        self.attempt(Subject::Channel(channel), |core, now| {
            let mut reader = Reader::new(inner, channel, out, false);
            let result = reader.attempt(core, now).unwrap_or(Err(Error::WouldBlock));
            reader.end(core, matches!(result, Ok(Some(_))));
            result
        })
    }

    /// Looks at the bytes of a stream that a read would give now; they stay.
    ///
    /// # Errors
    /// As [`Engine::try_recv`].
    pub fn try_peek(&self, channel: ChannelId, out: &mut [u8]) -> Result<Option<usize>, Error> {
        self.attempt(Subject::Channel(channel), |core, _| Ok(core.endpoint.peek(channel, out)?))
    }

    /// Waits until a look at the bytes of a stream fills `out`, no more of them can come before some are read, or the time is over, and gives what there is; they stay.
    ///
    /// # Errors
    /// Nothing came in time; the connection ended.
    pub fn peek_all(
        &self,
        channel: ChannelId,
        out: &mut [u8],
        deadline: Option<Instant>,
    ) -> Result<Option<usize>, Error> {
        let mut flushed = false;
        let looked = self.block(Subject::Channel(channel), deadline, |core, _| {
            match core.endpoint.peek_all(channel, out) {
                Err(RecvError::WouldBlock) => {
                    if !std::mem::replace(&mut flushed, true) {
                        // As in `recv`: questions leave before anybody waits for answers.
                        core.endpoint.flush(channel);
                    }
                    None
                }
                looked => Some(looked.map_err(Error::from)),
            }
        });
        match looked {
            Err(Error::TimedOut) => match self.try_peek(channel, out) {
                Err(Error::WouldBlock) => Err(Error::TimedOut),
                looked => looked,
            },
            looked => looked,
        }
    }
}

/// Hands over what there is room for, from `sent` on.
fn hand_over(
    inner: &Inner,
    core: &mut Core,
    mut now: Time,
    channel: ChannelId,
    bytes: &[u8],
    sent: &mut Sent,
) -> Option<Result<(), Error>> {
    loop {
        match core.endpoint.send_part(now, channel, bytes, sent.bytes) {
            Ok(count) => sent.bytes += count,
            Err(error) => return fatal(error.into()),
        }
        if sent.bytes == bytes.len() {
            return Some(Ok(()));
        }
        sent.is_part = core.endpoint.is_owed(channel);
        if sent.is_part {
            // The first part of a message is under way while the next one is copied.
            now = inner.now();
            if core.turn(now) {
                // It may have taken what another thread sleeps for.
                inner.wake_sleeper(core);
            }
            if inner.is_contended() {
                // There may be room: whoever calls this goes on when others have had the lock.
                return Some(Err(Error::WouldBlock));
            }
        }
    }
}
