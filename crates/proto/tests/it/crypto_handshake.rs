//! The handshake with a cluster key: who gets in, and what is covered.

use crate::support::*;
use proptest::prelude::*;
use ropeway_proto::crypto::handshake::{CONFIRM_OVERHEAD_BYTES, OPENED_OVERHEAD_BYTES};
use ropeway_proto::crypto::{ClusterKeys, Initiator, KeyError, Responder, Session};

const EARLY: &[u8] = b"parameters, OPEN and early data";
const ANSWER: &[u8] = b"the server's parameters";

/// A client that has sent its first message.
fn confirm(first: u8, prologue: &[u8], payload: &[u8]) -> (Initiator, Vec<u8>) {
    let mut initiator = Initiator::new(&key(first), prologue, [7; 32]);
    let mut message = vec![0; payload.len() + CONFIRM_OVERHEAD_BYTES];
    assert_eq!(initiator.write(payload, &mut message), Ok(message.len()));
    (initiator, message)
}

fn accept(keys: &ClusterKeys, prologue: &[u8], message: &[u8]) -> Result<(Vec<u8>, Responder), KeyError> {
    let mut payload = vec![0; message.len()];
    let (length, responder) = Responder::read(keys, prologue, message, [9; 32], &mut payload)?;
    payload.truncate(length);
    Ok((payload, responder))
}

/// The server's answer to a first message that opens.
fn opened(message: &[u8], header: &[u8]) -> (Vec<u8>, Session) {
    let (_, responder) = accept(&ClusterKeys::one(key(1)), PROLOGUE, message).expect("the first message opens");
    let mut answer = vec![0; ANSWER.len() + OPENED_OVERHEAD_BYTES];
    let (length, session) = responder.write(0, header, ANSWER, &mut answer).expect("the second message");
    assert_eq!(length, answer.len());
    (answer, session)
}

fn read(initiator: &mut Initiator, header: &[u8], answer: &[u8]) -> Result<(Vec<u8>, Session), KeyError> {
    let mut payload = vec![0; answer.len()];
    let (length, session) = initiator.read(0, header, answer, &mut payload)?;
    payload.truncate(length);
    Ok((payload, session))
}

fn error<T>(result: Result<T, KeyError>) -> KeyError {
    result.err().expect("a refusal")
}

#[test]
fn both_ends_of_a_handshake_can_talk_and_early_data_arrives_with_it() {
    let (mut initiator, message) = confirm(1, PROLOGUE, EARLY);
    let (early, _) = accept(&ClusterKeys::one(key(1)), PROLOGUE, &message).unwrap();
    assert_eq!(early, EARLY);
    let (answer, mut server) = opened(&message, OPENED_HEADER);
    let (parameters, mut client) = read(&mut initiator, OPENED_HEADER, &answer).unwrap();
    assert_eq!(parameters, ANSWER);
    let packet = seal(&mut client, 0, b"to the server");
    assert_eq!(open(&mut server, 0, &packet).unwrap(), b"to the server");
    let packet = seal(&mut server, 0, b"to the client");
    assert_eq!(open(&mut client, 0, &packet).unwrap(), b"to the client");
}

#[test]
fn without_the_key_nobody_gets_in() {
    let (_, message) = confirm(2, PROLOGUE, EARLY);
    assert_eq!(error(accept(&ClusterKeys::one(key(1)), PROLOGUE, &message)), KeyError::Unknown);
}

#[test]
fn a_server_with_several_keys_takes_each_and_says_which() {
    let lines: Vec<_> = [1, 2, 3].iter().map(|&first| key(first).line()).collect();
    let text: String = lines.iter().map(|line| format!("{}\n", **line)).collect();
    let keys = ClusterKeys::parse(&text).unwrap();
    for (index, first) in [1, 2, 3].into_iter().enumerate() {
        let (_, message) = confirm(first, PROLOGUE, EARLY);
        let (early, responder) = accept(&keys, PROLOGUE, &message).unwrap();
        assert_eq!((early.as_slice(), responder.key()), (EARLY, index));
    }
    let (_, message) = confirm(4, PROLOGUE, EARLY);
    assert_eq!(error(accept(&keys, PROLOGUE, &message)), KeyError::Unknown);
}

#[test]
fn a_first_message_opens_only_in_the_packet_that_it_was_made_for() {
    let (_, message) = confirm(1, PROLOGUE, EARLY);
    for i in 0..PROLOGUE.len() {
        let mut prologue = PROLOGUE.to_vec();
        prologue[i] ^= 1;
        assert_eq!(error(accept(&ClusterKeys::one(key(1)), &prologue, &message)), KeyError::Unknown, "byte {i}");
    }
}

#[test]
fn no_changed_or_shortened_message_opens_and_the_right_one_still_does() {
    let (mut initiator, message) = confirm(1, PROLOGUE, EARLY);
    let (answer, _) = opened(&message, OPENED_HEADER);
    let keys = ClusterKeys::one(key(1));
    for i in 0..message.len() {
        let mut changed = message.clone();
        changed[i] ^= 0x10;
        assert_eq!(error(accept(&keys, PROLOGUE, &changed)), KeyError::Unknown, "byte {i} of the first");
        let expected = if i < CONFIRM_OVERHEAD_BYTES { KeyError::Length } else { KeyError::Unknown };
        assert_eq!(error(accept(&keys, PROLOGUE, &message[..i])), expected, "{i} bytes of the first");
    }
    for i in 0..answer.len() {
        let mut changed = answer.clone();
        changed[i] ^= 0x10;
        assert_eq!(error(read(&mut initiator, OPENED_HEADER, &changed)), KeyError::Unknown, "byte {i} of the second");
        let expected = if i < OPENED_OVERHEAD_BYTES { KeyError::Length } else { KeyError::Unknown };
        assert_eq!(error(read(&mut initiator, OPENED_HEADER, &answer[..i])), expected, "{i} bytes of the second");
    }
    assert!(read(&mut initiator, OPENED_HEADER, &answer).is_ok());
}

#[test]
fn the_header_of_the_answer_is_covered_and_a_changed_one_spoils_nothing() {
    let (mut initiator, message) = confirm(1, PROLOGUE, EARLY);
    let (answer, _) = opened(&message, OPENED_HEADER);
    for i in 0..OPENED_HEADER.len() {
        let mut header = OPENED_HEADER.to_vec();
        header[i] ^= 1;
        assert_eq!(error(read(&mut initiator, &header, &answer)), KeyError::Unknown, "byte {i}");
        let mut changed = answer.clone();
        changed[i] ^= 1;
        assert_eq!(error(read(&mut initiator, OPENED_HEADER, &changed)), KeyError::Unknown, "message byte {i}");
    }
    assert!(read(&mut initiator, OPENED_HEADER, &answer).is_ok());
    assert_eq!(error(read(&mut initiator, OPENED_HEADER, &answer)), KeyError::Order);
}

#[test]
fn steps_out_of_order_and_small_buffers_are_errors_that_change_nothing() {
    let mut initiator = Initiator::new(&key(1), PROLOGUE, [7; 32]);
    let answer = vec![0; OPENED_OVERHEAD_BYTES + 1];
    assert_eq!(error(read(&mut initiator, OPENED_HEADER, &answer)), KeyError::Order);
    let mut message = vec![0; EARLY.len() + CONFIRM_OVERHEAD_BYTES];
    let short = message.len() - 1;
    assert_eq!(initiator.write(EARLY, &mut message[..short]), Err(KeyError::Room));
    assert_eq!(initiator.write(&[0; 65535], &mut [0; 70000]), Err(KeyError::Length));
    assert_eq!(initiator.write(EARLY, &mut message), Ok(message.len()));
    assert_eq!(initiator.write(EARLY, &mut [0; 200]), Err(KeyError::Order));

    let keys = ClusterKeys::one(key(1));
    let result = Responder::read(&keys, PROLOGUE, &message, [9; 32], &mut [0; EARLY.len() - 1]);
    assert_eq!(error(result), KeyError::Room);
    let (answer, _) = opened(&message, OPENED_HEADER);
    assert_eq!(error(initiator.read(0, OPENED_HEADER, &answer, &mut [0; ANSWER.len() - 1])), KeyError::Room);
    let (_, responder) = accept(&keys, PROLOGUE, &message).unwrap();
    assert_eq!(error(responder.write(0, OPENED_HEADER, ANSWER, &mut [0; 10])), KeyError::Room);
    assert!(read(&mut initiator, OPENED_HEADER, &answer).is_ok());
}

#[test]
fn the_same_random_bytes_give_the_same_ephemeral_key_only_for_the_same_packet() {
    let ephemeral = |first, prologue| confirm(first, prologue, EARLY).1[..32].to_vec();
    let one = ephemeral(1, PROLOGUE);
    assert_eq!(one, ephemeral(1, PROLOGUE));
    assert_ne!(one, ephemeral(1, b"another cookie"));
    assert_ne!(one, ephemeral(2, PROLOGUE));
    let answer = |message: &[u8]| opened(message, OPENED_HEADER).0[..32].to_vec();
    assert_ne!(answer(&confirm(1, PROLOGUE, EARLY).1), answer(&confirm(1, PROLOGUE, b"other data").1));
}

#[test]
fn an_association_is_not_opened_by_the_second_message_of_another() {
    let (mut initiator, _) = confirm(1, PROLOGUE, EARLY);
    let (_, other) = confirm(1, PROLOGUE, b"another first message");
    let (answer, _) = opened(&other, OPENED_HEADER);
    assert_eq!(error(read(&mut initiator, OPENED_HEADER, &answer)), KeyError::Unknown);
}

proptest! {
    #[test]
    fn any_bytes_are_refused_by_both_ends(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(accept(&ClusterKeys::one(key(1)), PROLOGUE, &bytes).is_err());
        let (mut initiator, _) = confirm(1, PROLOGUE, EARLY);
        prop_assert!(read(&mut initiator, OPENED_HEADER, &bytes).is_err());
    }
}
