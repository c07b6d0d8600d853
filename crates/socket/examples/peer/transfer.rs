//! One way, with an account of the receiver's at the end.

use crate::content::{Checked, LONGEST_MESSAGE_BYTES, fill, message_bytes};
use crate::is_set;
use crate::place::{self, Connection, Entrance};
use ropeway_socket::api::details;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const CHUNK_BYTES: usize = 64 << 10;
/// The first word of the receiver: it is there, and what follows is no first flight to a stranger any more.
const WELCOME: u8 = b'w';
/// The receiver's account: the bytes that arrived.
const ACCOUNT_BYTES: usize = 8;

pub fn receive(at: &str) -> io::Result<()> {
    let entrances = place::listen_with_workers(at)?;
    println!("{}", serde_json::json!({ "state": "ready" }));
    let may_read = Arc::new(AtomicBool::new(!is_set("PEER_HOLD")));
    if is_set("PEER_HOLD") {
        let may_read = may_read.clone();
        std::thread::spawn(move || {
            wait_for_line();
            may_read.store(true, Ordering::Release);
        });
    }
    let each = entrances.into_iter().map(|entrance| {
        let may_read = may_read.clone();
        std::thread::spawn(move || accept_all(&entrance, &may_read))
    });
    let threads: Vec<_> = each.collect();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| io::Error::other("a thread panicked"))?)
}

fn accept_all(entrance: &Entrance, may_read: &Arc<AtomicBool>) -> io::Result<()> {
    loop {
        let connection = entrance.accept()?;
        let may_read = may_read.clone();
        std::thread::spawn(move || serve(&connection, &may_read));
    }
}

/// Takes everything from one sender.
fn serve(connection: &Connection, may_read: &AtomicBool) {
    let mut seed = [0; 8];
    let begun = connection.recv_exactly(&mut seed).and_then(|()| connection.send(&[WELCOME]));
    let seed = u64::from_le_bytes(seed);
    let mut checked = Checked::new(seed);
    let result = begun.and_then(|()| {
        while !may_read.load(Ordering::Acquire) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        take_all(connection, &mut checked)?;
        connection.send(&checked.bytes().to_le_bytes())?;
        connection.end_of_sending()
    });
    let error = result.err().map(|error| error.to_string());
    println!("{}", serde_json::json!({ "state": "over", "seed": seed, "bytes": checked.bytes(), "error": error }));
}

fn take_all(connection: &Connection, checked: &mut Checked) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES.max(LONGEST_MESSAGE_BYTES)];
    let mut number = 0;
    while let Some(count) = connection.recv(&mut buffer)? {
        if matches!(connection, Connection::Messages(_)) && count as u64 != message_bytes(number) {
            return Err(io::Error::other(format!("message {number} has {count} bytes")));
        }
        number += 1;
        let at = checked.bytes();
        if !checked.takes(&buffer[..count]) {
            return Err(io::Error::other(format!("wrong bytes from offset {at} on")));
        }
    }
    Ok(())
}

/// Sends at least `bytes`; 0: until standard input ends.
pub fn send(to: &str, bytes: u64) -> io::Result<()> {
    let began = Instant::now();
    let mut sent = 0;
    let result = place::connect(to).and_then(|connection| try_send(&connection, bytes, &mut sent));
    let seconds = began.elapsed().as_secs_f64();
    let code = result.as_ref().err().and_then(details).map(|error| error.to_string());
    let kind = result.as_ref().err().map(|error| format!("{:?}", error.kind()));
    let error = result.as_ref().err().map(ToString::to_string);
    let bytes_per_second = result.as_ref().map_or(0.0, |seconds| sent as f64 / seconds);
    println!(
        "{}",
        serde_json::json!({ "state": "over", "sent": sent, "seconds": seconds, "mbit_per_s": bytes_per_second * 8.0 / 1e6,
            "error": error, "kind": kind, "details": code })
    );
    result.map(drop)
}

/// Says how many seconds it took from the first byte to the account.
fn try_send(connection: &Connection, bytes: u64, sent: &mut u64) -> io::Result<f64> {
    let seed = u64::from(std::process::id());
    connection.send(&seed.to_le_bytes())?;
    connection.recv_exactly(&mut [0; 1])?;
    println!("{}", serde_json::json!({ "state": "connected", "seed": seed }));
    if is_set("PEER_HOLD") {
        wait_for_line();
    }
    let is_over = Arc::new(AtomicBool::new(false));
    if bytes == 0 {
        let is_over = is_over.clone();
        std::thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            is_over.store(true, Ordering::Release);
        });
    }
    let goes_on = |sent: u64| if bytes > 0 { sent < bytes } else { !is_over.load(Ordering::Acquire) };
    let (began, mut number) = (Instant::now(), 0);
    let mut buffer = vec![0; CHUNK_BYTES.max(LONGEST_MESSAGE_BYTES)];
    while goes_on(*sent) {
        let length = match connection {
            Connection::Stream(_) if bytes > 0 => (CHUNK_BYTES as u64).min(bytes - *sent),
            Connection::Stream(_) => CHUNK_BYTES as u64,
            Connection::Messages(_) => message_bytes(number),
        };
        number += 1;
        let part = &mut buffer[..length as usize];
        fill(seed, *sent, part);
        connection.send(part)?;
        *sent += length;
    }
    connection.end_of_sending()?;
    let mut account = [0; ACCOUNT_BYTES];
    connection.recv_exactly(&mut account)?;
    let arrived = u64::from_le_bytes(account);
    if arrived != *sent {
        return Err(io::Error::other(format!("{arrived} bytes arrived of {sent}")));
    }
    Ok(began.elapsed().as_secs_f64())
}

fn wait_for_line() {
    let _ = io::stdin().read_line(&mut String::new());
}
