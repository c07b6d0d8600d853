//! Many kernel TCP connections into one host of a box, as what everything else there is compared with.

use crate::boxes::TestBox;
use crate::env::CProgram;
use crate::proc::{Process, command};
use std::time::Duration;

/// Until the receiver listens, and for its end: on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// TCP senders h2, h3, ... into h1, until the receiver has had enough or is dropped.
#[derive(Debug)]
pub struct TcpIncast {
    sink: Process,
    _sources: Vec<Process>,
}

impl TcpIncast {
    /// Begins. The congestion control is named for each socket: the machine's default may be any, and a namespace may not change it.
    #[track_caller]
    pub fn start(cluster: &TestBox, senders: usize, seconds: f32, congestion_control: &str) -> Self {
        const PORT: &str = "5001";
        let incast = CProgram::new("crates/testkit/programs/box/incast.c").build();
        let (count, seconds) = (senders.to_string(), seconds.to_string());
        let sink = cluster.spawn("h1", &command(&incast, ["sink", PORT, &count, &seconds]));
        sink.wait_for_output("ready", LIMIT);
        let address = cluster.v4("h1").to_string();
        let source = command(&incast, ["source", &address, PORT, congestion_control]);
        let sources = (2..senders + 2).map(|host| cluster.spawn(&format!("h{host}"), &source)).collect();
        Self { sink, _sources: sources }
    }

    /// What the receiver says at its end: bytes, rates.
    #[track_caller]
    pub fn end(&self) -> String {
        self.sink.succeed(LIMIT).stdout.trim().replace("ready\n", "")
    }
}
