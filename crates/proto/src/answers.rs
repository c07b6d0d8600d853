//! Whether what a peer sends is answered soon: then its acknowledgment waits for the answer to ride on (docs/protocol.md 5).

use crate::time::Time;

/// Prompt answers, less what failures cost, that it takes until acknowledgments wait for them ...
const TRUSTED: u8 = 32;
/// ... and as many count at most: an answer that was waited for in vain costs what is needed to be trusted, so one that is late now and then changes nothing,
/// and who never answers makes one packet of 33 wait in vain.
const MOST: u8 = 2 * TRUSTED;

/// What the answers to one peer have been like.
#[derive(Debug, Default)]
pub struct Answers {
    /// When the first packet arrived that is not answered.
    asked_at: Option<Time>,
    score: u8,
}

impl Answers {
    /// A numbered packet has arrived.
    pub fn asked(&mut self, now: Time) {
        self.asked_at.get_or_insert(now);
    }

    /// A numbered packet leaves; one that does so within `prompt_ns` could have carried the acknowledgment.
    pub fn answered(&mut self, now: Time, prompt_ns: u64) {
        if self.asked_at.take().is_some_and(|at| now.since(at) <= prompt_ns) {
            self.score = MOST.min(self.score + 1);
        }
    }

    /// Whether an answer is likely to come soon.
    pub fn are_prompt(&self) -> bool {
        self.score >= TRUSTED
    }

    /// The acknowledgment could not wait for it any longer.
    pub fn missed(&mut self) {
        if self.are_prompt() {
            self.score -= TRUSTED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(answers: &mut Answers, start: u64, after_ns: u64) {
        answers.asked(Time::from_nanos(start));
        answers.asked(Time::from_nanos(start + 1));
        answers.answered(Time::from_nanos(start + after_ns), 100);
    }

    #[test]
    fn answers_are_trusted_after_many_prompt_ones_and_an_exception_changes_nothing() {
        let mut answers = Answers::default();
        for round in 0..u64::from(TRUSTED) {
            // Nothing waits for one yet.
            answers.missed();
            assert!(!answers.are_prompt());
            exchange(&mut answers, round * 1000, 100);
        }
        assert!(answers.are_prompt());
        (0..100).for_each(|round| exchange(&mut answers, round * 1000, 3));
        answers.missed();
        assert!(answers.are_prompt());
        answers.missed();
        assert!(!answers.are_prompt());
    }

    #[test]
    fn late_answers_and_packets_without_a_question_say_nothing() {
        let mut answers = Answers::default();
        (0..100).for_each(|round| exchange(&mut answers, round * 1000, 101));
        (0..100).for_each(|round| answers.answered(Time::from_nanos(round), 100));
        assert_eq!(answers.score, 0);
    }
}
