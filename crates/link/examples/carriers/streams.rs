//! What the kernel does without a link: UDP one packet at a time, and TCP.

use crate::support::{self, Hosts};
use crate::{Row, SHORT_BYTES, half_turns};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A write of TCP: as much as a segmented send of UDP.
const WRITE_BYTES: usize = 64 << 10;

const FULL_BYTES: usize = 1472;

/// UDP packets under way at most: they fit into the kernel's usual buffer.
const WINDOW_PACKETS: u64 = 60;

pub fn measure(name: &str, hosts: &Hosts, time: Duration) -> Row {
    if name == "tcp" {
        let (a, b) = connection(hosts);
        let one_way_us = tcp_ping_pong(a, b, time);
        let (a, b) = connection(hosts);
        Row { one_way_us, short_millions_per_s: f64::NAN, gbit_per_s: tcp_stream(a, b, time) * 8.0 / 1e9 }
    } else {
        let (a, b) = sockets(hosts);
        let one_way_us = udp_ping_pong(&a, &b, time);
        let short_millions_per_s = udp_one_way(&a, &b, SHORT_BYTES, time) / 1e6;
        let full = udp_one_way(&a, &b, FULL_BYTES, time) * FULL_BYTES as f64 * 8.0 / 1e9;
        Row { one_way_us, short_millions_per_s, gbit_per_s: full }
    }
}

fn sockets(hosts: &Hosts) -> (UdpSocket, UdpSocket) {
    let [a, b] = [0, 1].map(|end| {
        let socket = hosts.on(end, || UdpSocket::bind(SocketAddr::new(support::address(end, false), 0)));
        let socket = socket.expect("a socket");
        socket.set_nonblocking(true).expect("non-blocking");
        socket
    });
    (a, b)
}

/// Spins until a packet is there.
fn udp_receive(socket: &UdpSocket, stop: &AtomicBool) -> bool {
    let mut bytes = [0; 2048];
    loop {
        match socket.recv_from(&mut bytes) {
            Ok(_) => return true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
}

fn udp_ping_pong(a: &UdpSocket, b: &UdpSocket, time: Duration) -> f64 {
    let stop = AtomicBool::new(false);
    let [to_a, to_b] = [a, b].map(|socket| socket.local_addr().expect("bound"));
    let bytes = [7; SHORT_BYTES];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while udp_receive(b, &stop) {
                b.send_to(&bytes, to_a).expect("sent");
            }
        });
        let mut turn = || {
            a.send_to(&bytes, to_b).expect("sent");
            udp_receive(a, &stop)
        };
        let us = half_turns(&mut turn, time);
        stop.store(true, Ordering::Relaxed);
        us
    })
}

fn udp_one_way(a: &UdpSocket, b: &UdpSocket, len: usize, time: Duration) -> f64 {
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let to = b.local_addr().expect("bound");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while udp_receive(b, &stop) {
                received.fetch_add(1, Ordering::Relaxed);
            }
        });
        let bytes = vec![7; len];
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < time {
            if sent - received.load(Ordering::Relaxed) < WINDOW_PACKETS && a.send_to(&bytes, to).is_ok() {
                sent += 1;
            }
        }
        let rate = received.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

fn connection(hosts: &Hosts) -> (TcpStream, TcpStream) {
    let at = SocketAddr::new(support::address(1, false), 0);
    let listener = hosts.on(1, || TcpListener::bind(at)).expect("a socket");
    let to = listener.local_addr().expect("bound");
    let client = hosts.on(0, || TcpStream::connect(to)).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    for end in [&client, &server] {
        end.set_nodelay(true).expect("an option");
        end.set_nonblocking(true).expect("an option");
    }
    (client, server)
}

/// Reads, spinning, until so many bytes are there; `false`: the other end closed.
fn tcp_receive(stream: &mut TcpStream, bytes: &mut [u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match stream.read(&mut bytes[at..]) {
            Ok(0) => return false,
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("{error}"),
        }
    }
    true
}

fn tcp_ping_pong(mut a: TcpStream, mut b: TcpStream, time: Duration) -> f64 {
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut bytes = [0; SHORT_BYTES];
            while tcp_receive(&mut b, &mut bytes) {
                b.write_all(&bytes).expect("a few bytes always fit");
            }
        });
        let mut bytes = [7; SHORT_BYTES];
        let mut turn = || {
            a.write_all(&bytes).expect("a few bytes always fit");
            tcp_receive(&mut a, &mut bytes)
        };
        let us = half_turns(&mut turn, time);
        drop(a);
        us
    })
}

fn tcp_stream(mut a: TcpStream, mut b: TcpStream, time: Duration) -> f64 {
    a.set_nonblocking(false).expect("an option");
    b.set_nonblocking(false).expect("an option");
    let received = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = vec![0; WRITE_BYTES];
            while let Ok(count @ 1..) = b.read(&mut bytes) {
                received.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        let bytes = vec![7; WRITE_BYTES];
        let start = Instant::now();
        while start.elapsed() < time {
            a.write_all(&bytes).expect("the other end reads");
        }
        let rate = received.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        drop(a);
        rate
    })
}
