//! Who watches edge-triggered, and takes a stream for empty when less came than was asked for, hears of what comes after, as over TCP.

use ropeway_engine::link::memory;
use ropeway_engine::{ChannelId, Engine, Error, ErrorCode, Mode, Options, Target, Watch};
use ropeway_link::Address;
use ropeway_testkit::proc::until;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

const PORT: u16 = 7;

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// A stream whose server is watched for edges.
struct Watched {
    client: Engine,
    server: Engine,
    there: ChannelId,
    back: ChannelId,
    edges: OwnedFd,
    _watch: Watch,
}

impl Watched {
    fn new() -> Watched {
        let (one, other) = memory::pair(memory::Config::default()).unwrap();
        let [client, server] = [(); 2].map(|()| Engine::new(&Options::default()).unwrap());
        let link = client.add_link(Box::new(one)).unwrap();
        server.add_link(Box::new(other)).unwrap();
        server.listen(PORT, Mode::Stream, 8).unwrap();
        let to = Target { link, address: Address::Sim(1) };
        let there = client.connect(to, PORT, Mode::Stream, soon()).unwrap();
        let back = server.accept(PORT, soon()).unwrap();
        let watch = server.watch_like_socket(back).unwrap();
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&edges, &watch, epoll::EventData::new_u64(0), flags).unwrap();
        Watched { client, server, there, back, edges, _watch: watch }
    }

    fn say(&self) {
        self.client.send_all(self.there, b"hello", soon()).unwrap();
    }

    /// The end is said, and has arrived.
    fn end(&self) {
        self.client.shutdown(self.there).unwrap();
        until("the end has arrived", || self.client.readiness(self.there).unwrap().drained);
    }

    /// The peer gives the stream up, and this end knows.
    fn fail(&self) {
        self.client.abort(self.there);
        until("it has failed", || self.server.readiness(self.back).unwrap().failed.is_some());
    }

    fn wait(&self, about: &str) {
        let mut events = Vec::with_capacity(1);
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        let count = epoll::wait(&self.edges, rustix::buffer::spare_capacity(&mut events), Some(&limit)).unwrap();
        assert_eq!(count, 1, "no edge: {about}");
    }

    /// Less comes than was asked for.
    fn read(&self) {
        assert_eq!(self.server.try_recv(self.back, &mut [0; 100]).unwrap(), Some(5));
    }
}

#[test]
fn the_end_is_an_edge_whenever_it_comes() {
    let watched = Watched::new();
    watched.say();
    watched.wait("bytes");
    watched.read();
    watched.end();
    watched.wait("it came after they were read");
    assert_eq!(watched.server.try_recv(watched.back, &mut [0; 100]).unwrap(), None);

    let watched = Watched::new();
    watched.say();
    watched.wait("bytes");
    watched.end();
    watched.read();
    watched.wait("it came before they were read");
    assert_eq!(watched.server.try_recv(watched.back, &mut [0; 100]).unwrap(), None);

    let watched = Watched::new();
    watched.say();
    watched.end();
    watched.wait("bytes");
    watched.read();
    watched.wait("it was there with them");
    assert_eq!(watched.server.try_recv(watched.back, &mut [0; 100]).unwrap(), None);
}

#[test]
fn what_made_a_stream_fail_is_an_edge_behind_its_last_bytes() {
    let watched = Watched::new();
    watched.say();
    watched.wait("bytes");
    until("they are acknowledged", || watched.client.readiness(watched.there).unwrap().drained);
    watched.fail();
    watched.read();
    watched.wait("it has failed");
    let ended = watched.server.try_recv(watched.back, &mut [0; 100]);
    assert!(matches!(ended, Err(Error::Failed(ErrorCode::Reset))), "{ended:?}");
}
