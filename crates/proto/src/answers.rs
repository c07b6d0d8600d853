//! Whether what a peer sends is answered soon: then its acknowledgment waits for the answer to ride on (docs/protocol.md 5).

use crate::config::Config;
use crate::rtt::Rtt;
use crate::time::Time;

/// Prompt answers, less what failures cost, that it takes until acknowledgments wait for them ...
const TRUSTED: u8 = 32;
/// ... and as many count at most: an answer that was waited for in vain costs what is needed to be trusted, so one that is late now and then changes nothing,
/// and who never answers makes one packet of 33 wait in vain.
const MOST: u8 = 2 * TRUSTED;
/// What waits for an answer is so many times as late as what does not.
const DELAY: u64 = 15;

/// What the answers to one peer have been like.
#[derive(Debug, Default)]
pub struct Answers {
    /// When the first packet arrived that is not answered.
    asked_at: Option<Time>,
    score: u8,
    /// An acknowledgment waits for one.
    is_awaited: bool,
}

/// How long an acknowledgment waits for an answer that is likely to come: so that it arrives before the other end would ask, if that has the same settings.
pub fn delay_ns(config: &Config, rtt: &Rtt) -> u64 {
    let before_question_ns = rtt.patience_ns().max(config.state_min_ns).saturating_sub(rtt.smoothed_ns()) / 8 * 7;
    (DELAY * config.ack_delay_ns).min(before_question_ns).max(config.ack_delay_ns)
}

impl Answers {
    /// A numbered packet has arrived, and its acknowledgment waits for an answer or does not.
    pub fn asked(&mut self, now: Time, is_awaited: bool) {
        self.asked_at.get_or_insert(now);
        self.is_awaited |= is_awaited;
    }

    /// A numbered packet leaves; one that does so within `delay_ns` could have carried the acknowledgment. Most packets of a transfer answer nothing, and need not know it.
    pub fn answered(&mut self, now: Time, delay_ns: impl FnOnce() -> u64) {
        if self.asked_at.take().is_some_and(|at| now.since(at) <= delay_ns()) {
            self.score = MOST.min(self.score + 1);
        }
    }

    /// Whether an answer is likely to come soon.
    pub fn are_prompt(&self) -> bool {
        self.score >= TRUSTED
    }

    /// The acknowledgment has left, whatever it rode on.
    pub fn acknowledged(&mut self) {
        self.is_awaited = false;
    }

    /// The acknowledgment can wait no longer. If it was an answer that it waited for, that counts.
    pub fn missed(&mut self) {
        if std::mem::take(&mut self.is_awaited) {
            self.score = self.score.saturating_sub(TRUSTED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(answers: &mut Answers, start: u64, after_ns: u64) {
        let is_awaited = answers.are_prompt();
        answers.asked(Time::from_nanos(start), is_awaited);
        answers.asked(Time::from_nanos(start + 1), is_awaited);
        answers.answered(Time::from_nanos(start + after_ns), || 100);
        answers.acknowledged();
    }

    #[test]
    fn answers_are_trusted_after_many_prompt_ones_and_an_exception_changes_nothing() {
        let mut answers = Answers::default();
        for round in 0..u64::from(TRUSTED) {
            assert!(!answers.are_prompt());
            exchange(&mut answers, round * 1000, 100);
        }
        assert!(answers.are_prompt());
        (0..100).for_each(|round| exchange(&mut answers, round * 1000, 3));
        for is_prompt in [true, false] {
            answers.asked(Time::ZERO, true);
            // The timer, and the question of who has become impatient: once.
            (0..2).for_each(|_| answers.missed());
            assert_eq!(answers.are_prompt(), is_prompt);
        }
        // What did not wait is not waited for in vain.
        answers.asked(Time::ZERO, false);
        answers.missed();
        assert_eq!(answers.score, 0);
    }

    #[test]
    fn late_answers_and_packets_without_a_question_say_nothing() {
        let mut answers = Answers::default();
        (0..100).for_each(|round| exchange(&mut answers, round * 1000, 101));
        (0..100).for_each(|round| answers.answered(Time::from_nanos(round), || 100));
        assert_eq!(answers.score, 0);
    }
}
