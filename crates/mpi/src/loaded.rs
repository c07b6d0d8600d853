//! The shim, loaded: the only unsafe code about MPI.
//!
//! What all of it relies on: the library is our own `shim.c`, compiled for this machine, as its interface number says; functions are called by one thread at a time ([`Loaded`] stays in the thread that made it, by way of
//! [`crate::Mpi`]); and memory that MPI was given for a send or a receive is borrowed until MPI has let go of it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use crate::Error;

/// The number that `shim.c` must give.
const INTERFACE: c_int = 1;

/// In place of a rank.
pub const ANYBODY: c_int = -1;

/// Room for what MPI says of errors and of itself; it is cut where it is longer.
const TEXT_BYTES: usize = 256;

/// A message that is there.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    pub from: usize,
    pub length: usize,
}

type Plain = unsafe extern "C" fn() -> c_int;
type One = unsafe extern "C" fn(*mut c_int) -> c_int;
type Two = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, c_int) -> c_int;
type Explain = unsafe extern "C" fn(c_int, *mut c_char, c_int) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, c_int, c_int) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
type Probe = unsafe extern "C" fn(c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type Abort = unsafe extern "C" fn();

/// Functions of the shim. They stay valid as long as the library, which is never unloaded: MPI leaves threads and handlers behind.
pub struct Loaded {
    init: Symbol<Two>,
    version: Symbol<Text>,
    explain: Symbol<Explain>,
    send: Symbol<Send>,
    sent: Symbol<One>,
    receive: Symbol<Receive>,
    received: Symbol<Two>,
    unreceive: Symbol<Two>,
    probe: Symbol<Probe>,
    meet: Symbol<Plain>,
    met: Symbol<One>,
    finalize: Symbol<Plain>,
    abort: Symbol<Abort>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loaded")
    }
}

impl Loaded {
    /// Loads a shim.
    pub fn open(path: &Path) -> Result<Loaded, Error> {
        let failed = |cause| Error::Load { path: path.to_owned(), cause };
        // Global: Open MPI's plugins look for its symbols among everybody's.
        // SAFETY: the initializers that run are those of the user's MPI, which every MPI program on this machine runs.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(failed)?;
        // SAFETY: a function without arguments that gives an int; of a stranger's library it could be another one, but no stranger's has it.
        let interface = unsafe {
            let function: Symbol<Plain> = library.get(b"ropeway_mpi_interface\0").map_err(failed)?;
            function()
        };
        if interface != INTERFACE {
            return Err(Error::Interface { path: path.to_owned() });
        }
        // SAFETY: the interface number says that the functions have the types of `shim.c`, which are those above.
        let loaded = unsafe {
            Loaded {
                init: library.get(b"ropeway_mpi_init\0").map_err(failed)?,
                version: library.get(b"ropeway_mpi_version\0").map_err(failed)?,
                explain: library.get(b"ropeway_mpi_explain\0").map_err(failed)?,
                send: library.get(b"ropeway_mpi_send\0").map_err(failed)?,
                sent: library.get(b"ropeway_mpi_sent\0").map_err(failed)?,
                receive: library.get(b"ropeway_mpi_receive\0").map_err(failed)?,
                received: library.get(b"ropeway_mpi_received\0").map_err(failed)?,
                unreceive: library.get(b"ropeway_mpi_unreceive\0").map_err(failed)?,
                probe: library.get(b"ropeway_mpi_probe\0").map_err(failed)?,
                meet: library.get(b"ropeway_mpi_meet\0").map_err(failed)?,
                met: library.get(b"ropeway_mpi_met\0").map_err(failed)?,
                finalize: library.get(b"ropeway_mpi_finalize\0").map_err(failed)?,
                abort: library.get(b"ropeway_mpi_abort\0").map_err(failed)?,
            }
        };
        std::mem::forget(library);
        Ok(loaded)
    }

    /// Begins MPI; this rank, and how many there are.
    pub fn init(&self) -> Result<(usize, usize), Error> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: two integers to write to; `Mpi::begin_with` lets nobody come here twice in a process.
        let code = unsafe { (self.init)(&mut rank, &mut size) };
        self.check("begin", code)?;
        Ok((rank as usize, size as usize))
    }

    pub fn version(&self) -> Result<String, Error> {
        let mut text = [0; TEXT_BYTES];
        // SAFETY: the room is as long as is said, and what is written ends with 0 inside it.
        let code = unsafe { (self.version)(text.as_mut_ptr(), TEXT_BYTES as c_int) };
        self.check("tell its version", code)?;
        Ok(as_text(&text))
    }

    /// Sends bytes, and calls `meanwhile` until MPI has let go of them. Its error ends the job: the bytes cannot be taken back.
    pub fn send(
        &self,
        bytes: &[u8],
        count: c_int,
        to: c_int,
        mut meanwhile: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        debug_assert_eq!(bytes.len(), count as usize);
        // SAFETY: the bytes are borrowed until this function returns, which it does when `sent` says that MPI has let go of them, or not at all.
        let code = unsafe { (self.send)(bytes.as_ptr().cast(), count, to) };
        self.check("send", code)?;
        let mut done = 0;
        loop {
            // SAFETY: an integer to write to.
            let code = unsafe { (self.sent)(&mut done) };
            if let Err(error) = self.check("send", code) {
                self.end_job(&error);
            }
            if done != 0 {
                return Ok(());
            }
            if let Err(error) = meanwhile() {
                self.end_job(&error);
            }
        }
    }

    /// Receives up to `count` bytes, and gives how many; `None`: `goes_on` said no before they came.
    pub fn receive(
        &self,
        room: &mut [u8],
        count: c_int,
        from: c_int,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<usize>, Error> {
        debug_assert_eq!(room.len(), count as usize);
        // SAFETY: the room is borrowed until this function returns, which it does when MPI has said that it is done with it, or when it was taken back from MPI.
        let code = unsafe { (self.receive)(room.as_mut_ptr().cast(), count, from) };
        self.check("receive", code)?;
        let (mut done, mut length) = (0, 0);
        loop {
            // SAFETY: two integers to write to. `done` says whether MPI still holds the room, also of an error.
            let code = unsafe { (self.received)(&mut done, &mut length) };
            match self.check("receive", code) {
                Err(error) if done == 0 => self.end_job(&error),
                checked => checked?,
            }
            if done != 0 {
                return Ok(Some(length as usize));
            }
            if !goes_on() {
                break;
            }
        }
        // SAFETY: two integers to write to. It returns when MPI has let go of the room.
        let code = unsafe { (self.unreceive)(&mut done, &mut length) };
        if let Err(error) = self.check("take a receive back", code) {
            self.end_job(&error);
        }
        Ok((done != 0).then_some(length as usize))
    }

    /// A message that is there, of that rank or of [`ANYBODY`].
    pub fn probe(&self, from: c_int) -> Result<Option<Found>, Error> {
        let (mut found, mut whose, mut length) = (0, 0, 0);
        // SAFETY: three integers to write to.
        let code = unsafe { (self.probe)(from, &mut found, &mut whose, &mut length) };
        self.check("look for messages", code)?;
        Ok((found != 0).then_some(Found { from: whose as usize, length: length as usize }))
    }

    /// Waits for all ranks; `false`: `goes_on` said no before all came.
    pub fn meet(&self, mut goes_on: impl FnMut() -> bool) -> Result<bool, Error> {
        // SAFETY: no arguments; the shim keeps the request, no memory of ours is involved.
        let code = unsafe { (self.meet)() };
        self.check("make a barrier", code)?;
        let mut done = 0;
        loop {
            // SAFETY: an integer to write to.
            let code = unsafe { (self.met)(&mut done) };
            self.check("wait at a barrier", code)?;
            if done != 0 || !goes_on() {
                return Ok(done != 0);
            }
        }
    }

    pub fn finalize(&self) -> Result<(), Error> {
        // SAFETY: no arguments; called once, when the `Mpi` that has begun it is dropped.
        let code = unsafe { (self.finalize)() };
        self.check("end", code)
    }

    fn check(&self, what: &'static str, code: c_int) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0; TEXT_BYTES];
        // SAFETY: the room is as long as is said, and what is written ends with 0 inside it.
        let explained = unsafe { (self.explain)(code, text.as_mut_ptr(), TEXT_BYTES as c_int) };
        let why = if explained == 0 { as_text(&text) } else { format!("error {code}") };
        Err(Error::Mpi { what, why })
    }

    /// Ends all ranks.
    fn end_job(&self, why: &Error) -> ! {
        eprintln!("ropeway: {why}; a message under way cannot be taken back from MPI, so the job ends here");
        // SAFETY: no arguments; MPI has begun, or there would be nothing to send or receive.
        unsafe { (self.abort)() };
        // It does not return, but its promise to is not one of C.
        std::process::abort()
    }
}

/// The first line of what MPI has written.
fn as_text(text: &[c_char; TEXT_BYTES]) -> String {
    let bytes = text.map(|byte| byte as u8);
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy();
    text.lines().next().unwrap_or_default().trim().to_owned()
}
