//! Addresses of this host that are taken before it is settled what for.

use super::address::{Address, ToAddresses};
use super::common::first;
use super::home::{self, Binding};
use ropeway_engine::{Engine, Error};
use std::fmt;
use std::io;
use std::sync::Arc;

/// An address of this host, to listen at or to connect from. It is taken until this, and what uses it, is gone.
#[derive(Clone)]
pub struct Local {
    pub(super) binding: Arc<Binding>,
    /// The port of the protocol that peers are told; `None`: one of the engine's choice.
    pub(super) port: Option<u16>,
}

impl Local {
    /// Takes the first address that is free. Port 0 takes one that is free.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; `PermissionDenied`, as [`Listener::bind`](super::Listener::bind).
    pub fn bind(at: impl ToAddresses) -> io::Result<Local> {
        first(at, |at| {
            let binding = Arc::new(home::to_listen(&at.to_listen()?)?);
            Ok(Local { binding, port: None })
        })
    }

    /// The first address that is free, for several engines that listen there ([`Listener::bind_workers`](super::Listener::bind_workers)), for as many threads that share nothing. Who connects from
    /// several engines binds an address for each.
    ///
    /// # Errors
    /// As [`Self::bind`]; `InvalidInput`: 1 to 64 of them; `Unsupported`: over AF_XDP, and where gateways bring packets, there is one.
    pub fn bind_workers(at: impl ToAddresses, workers: usize) -> io::Result<Vec<Local>> {
        first(at, |at| {
            let bindings = home::to_listen_with(&at.to_listen()?, workers)?;
            Ok(bindings.into_iter().map(|binding| Local { binding: Arc::new(binding), port: None }).collect())
        })
    }

    /// The same as [`Self::bind`], for connections of which peers are told that they come from this port of the protocol.
    #[must_use]
    pub fn with_port(&self, port: u16) -> Local {
        Local { binding: self.binding.clone(), port: Some(port) }
    }

    /// What carries the connections here, to change its settings ([`Engine::configure`]) before there are any. Over AF_XDP all of a device share one.
    pub fn engine(&self) -> &Engine {
        self.binding.home().engine()
    }

    /// Whether the network device of the address is gone: nothing comes or goes there any more, though a device of that name may be back.
    pub fn has_failed(&self) -> bool {
        self.binding.home().has_failed()
    }

    /// # Errors
    /// The process was forked.
    pub fn local_addr(&self) -> io::Result<Address> {
        let home = self.binding.home();
        Ok(home.name(home.local().ok_or(Error::Forked)?, self.binding.port()))
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("address", &self.local_addr().ok()).field("port", &self.port).finish()
    }
}
