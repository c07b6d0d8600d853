//! The sockets of document 0 ([0:4.6]): addresses are numbers of nodes and ports, connections carry messages, and there are nine calls.
//!
//! What the document leaves open is decided as cdp.h says. What is not here: how nodes in between forward, which is a gateway's matter
//! (`ropeway_socket::api::cluster`).

pub mod calls;
mod nodes;

use crate::failure::{Failure, Outcome};
use crate::socket::{Socket, closed};
use crate::table::Table;
use nodes::Nodes;
use ropeway_socket::Local;
use ropeway_socket::api::{Claim, PerProcess};
use std::ffi::c_int;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The longest message, in bytes, where somebody wants it as short as the document has it.
const LIMIT_VAR: &str = "ROPEWAY_CDP_LIMIT";
/// All on this network namespace who speak of node N share its ports.
const NODE_PORTS: &str = "cdp-node-";

/// A node and a port of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CdpAddress {
    pub node: c_int,
    pub port: c_int,
}

/// What `cdp_init` settled.
struct Cdp {
    node: c_int,
    nodes: Nodes,
    /// The most bytes of a message.
    limit: usize,
    sockets: Table<CdpSocket>,
    /// Where connections of this process come from.
    own: Mutex<Option<Local>>,
}

/// What a process has of it.
#[derive(Default)]
struct Settled {
    /// Held by a `cdp_init`: of several at once one succeeds, and the others change nothing.
    init: Mutex<()>,
    cdp: OnceLock<Cdp>,
}

static CDP: PerProcess<Settled> = PerProcess::new();

struct CdpSocket {
    /// The right to the port, until the socket is closed: threads that are in calls then do not keep it from others.
    claim: Mutex<Option<PortClaim>>,
    socket: Socket,
}

/// A port and the right to it.
type PortClaim = (u16, Arc<Claim>);

impl CdpSocket {
    fn new(claim: PortClaim, socket: Socket) -> CdpSocket {
        CdpSocket { claim: Mutex::new(Some(claim)), socket }
    }

    fn claim(&self) -> Outcome<PortClaim> {
        lock(&self.claim).clone().ok_or_else(closed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(what: impl Into<String>) -> Failure {
    Failure::new(libc::EINVAL, what)
}

/// Settles who this node is. What can fail comes first: a call that fails changes nothing.
fn init(node: c_int, interfaces: &[&str], forward: c_int) -> Outcome<()> {
    let Some(device) = interfaces.first() else {
        return Err(invalid("cdp_init needs at least one interface"));
    };
    for interface in interfaces {
        // A name with a slash would be a path elsewhere, and not all that lies there is an interface.
        let is_there = !interface.contains('/') && Path::new("/sys/class/net").join(interface).join("ifindex").exists();
        if interface.is_empty() || !is_there {
            return Err(Failure::new(libc::ENODEV, format!("there is no network interface `{interface}`")));
        }
    }
    let nodes = Nodes::read(device)?;
    nodes.own(node)?;
    let already = || Failure::new(libc::EALREADY, "cdp_init has been called in this process");
    let settled = CDP.get_or_make(Settled::default)?.value;
    let _init = lock(&settled.init);
    if settled.cdp.get().is_some() {
        return Err(already());
    }
    let limit = match std::env::var(LIMIT_VAR) {
        Err(_) => usize::MAX,
        Ok(text) => text.parse().map_err(|_| invalid(format!("{LIMIT_VAR} is a number of bytes, not `{text}`")))?,
    };
    let forwarder = if forward != 0 { Some(nodes.forwarder(node, interfaces)?) } else { None };
    nodes.settle(node)?;
    let cdp = Cdp { node, nodes, limit, sockets: Table::new(), own: Mutex::new(None) };
    settled.cdp.set(cdp).map_err(|_| already())?;
    if let Some(forwarder) = forwarder {
        forwarder.start();
    }
    Ok(())
}

impl Cdp {
    fn get() -> Outcome<&'static Cdp> {
        let cdp = CDP.get().and_then(|settled| settled.cdp.get());
        cdp.ok_or_else(|| Failure::new(libc::ENETDOWN, "call cdp_init first (in a forked child once more)"))
    }

    fn claim(&self, port: u16) -> Outcome<PortClaim> {
        let (port, claim) = Claim::port(&format!("{NODE_PORTS}{}", self.node), port)?;
        Ok((port, Arc::new(claim)))
    }

    fn socket(&self) -> Outcome<c_int> {
        let socket = Socket::new(libc::SOCK_SEQPACKET)?;
        // In the document a peer reads all that was sent before the close [1:3.5], whatever was not read here.
        socket.set_options(|options| options.forgets_unread = true)?;
        self.sockets.add(CdpSocket::new(self.claim(0)?, socket))
    }

    /// The address from which this node's connections come, taken when the first is opened, and anew when its device has come back.
    fn own(&self) -> Outcome<Local> {
        let mut own = lock(&self.own);
        if let Some(local) = own.as_ref().filter(|local| !local.has_failed()) {
            return Ok(local.clone());
        }
        let local = Local::bind(self.nodes.own(self.node)?)?;
        *own = Some(local.clone());
        Ok(local)
    }

    fn bind(&self, s: c_int, to: CdpAddress) -> Outcome<()> {
        let socket = self.sockets.get(s)?;
        if to.node != self.node {
            let what = format!("this is node {}: sockets of node {} are opened there", self.node, to.node);
            return Err(Failure::new(libc::EADDRNOTAVAIL, what));
        }
        let port = port(to.port)?;
        if !socket.socket.is_fresh() {
            return Err(invalid("the socket is in use"));
        }
        let mut claim = lock(&socket.claim);
        let claim = claim.as_mut().ok_or_else(closed)?;
        if claim.0 != port {
            *claim = self.claim(port)?;
        }
        Ok(())
    }

    fn listen(&self, s: c_int, backlog: c_int) -> Outcome<()> {
        let socket = self.sockets.get(s)?;
        let (port, _) = socket.claim()?;
        socket.socket.listen_at(&self.nodes.at(self.node, port)?, backlog)
    }

    fn accept(&self, s: c_int, nonblocking: bool) -> Outcome<(c_int, CdpAddress)> {
        let listener = self.sockets.get(s)?;
        let (socket, peer) = listener.socket.accept(nonblocking)?;
        let from = CdpAddress { node: self.nodes.node_of(&peer), port: c_int::from(socket.connection()?.ports().1) };
        // Its local port is the listener's, and the right to it is shared.
        Ok((self.sockets.add(CdpSocket::new(listener.claim()?, socket))?, from))
    }

    fn connect(&self, s: c_int, to: CdpAddress) -> Outcome<()> {
        let socket = self.sockets.get(s)?;
        let (from, _) = socket.claim()?;
        let to = self.nodes.at(to.node, port(to.port)?)?;
        socket.socket.connect(&to, Some(&self.own()?.with_port(from)))
    }

    fn send(&self, s: c_int, message: &[u8]) -> Outcome<c_int> {
        self.sockets.with(s, |socket| {
            if message.len() > self.limit {
                let what = format!("the message has {} bytes, and {LIMIT_VAR} allows {}", message.len(), self.limit);
                return Err(Failure::new(libc::EMSGSIZE, what));
            }
            let count = returned(message.len())?;
            socket.socket.send(message, 0)?;
            Ok(count)
        })
    }

    /// One message. A connection that the peer has closed gives what it sent before, and then an error: it is a zombie until this end closes it as well [0:4.1.3].
    fn recv(&self, s: c_int, out: &mut [u8], nonblocking: bool) -> Outcome<c_int> {
        let flags = if nonblocking { libc::MSG_DONTWAIT } else { 0 };
        let count = self.sockets.with(s, |socket| socket.socket.recv(out, flags))?;
        let ended = || Failure::new(libc::ENOTCONN, "the peer has closed the connection, and everything was read");
        returned(count.ok_or_else(ended)?)
    }

    fn close(&self, s: c_int) -> Outcome<()> {
        let socket = self.sockets.remove(s)?;
        socket.socket.close();
        lock(&socket.claim).take();
        Ok(())
    }
}

fn port(port: c_int) -> Outcome<u16> {
    let port = u16::try_from(port).ok().filter(|&port| port > 0);
    port.ok_or_else(|| invalid("ports go from 1 to 65535"))
}

fn returned(bytes: usize) -> Outcome<c_int> {
    c_int::try_from(bytes).map_err(|_| Failure::new(libc::EMSGSIZE, "the message is longer than an int can say"))
}
