//! A file of a FUSE file system whose server leaves some questions unanswered: whoever asks them waits for ever.

use std::path::Path;
use std::process::ChildStdin;
use std::time::Duration;

use ropeway_testkit::proc::{Process, command};

/// Questions that a server may leave unanswered, as linux/fuse.h numbers them.
pub const GETATTR: u32 = 3;
pub const OPEN: u32 = 14;
pub const FLUSH: u32 = 25;

/// Opens the only file, in a file system that is in no directory any more, and leaves unanswered from then on what the third argument names. With two more it passes the file to a daemon, beside
/// a message. Ends with its input, and the file system with it.
const SERVER: &str = "\
import ctypes, os, socket, struct, sys, threading
place, name = sys.argv[1:3]
unanswered = set(map(int, sys.argv[3].split(',')))
libc = ctypes.CDLL(None, use_errno=True)
try:
    device = os.open('/dev/fuse', os.O_RDWR)
    options = b'fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other' % device
    if libc.mount(b'ropeway-test', place.encode(), b'fuse', 0, options):
        raise OSError(ctypes.get_errno(), 'mount')
except OSError as error:
    print('no FUSE here:', error, flush=True)
    sys.exit()
is_open = False
def attributes(inode):
    return struct.pack('<6Q10I', inode, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755 if inode == 1 else 0o100644, 1, 0, 0, 0, 4096, 0)
def serve():
    while True:
        question = os.read(device, 1 << 17)
        operation, unique, inode, asking = struct.unpack('<IQQ8xI', question[4:36])
        def answer(data=b'', error=0):
            os.write(device, struct.pack('<IiQ', 16 + len(data), error, unique) + data)
        if is_open and operation in unanswered and asking != os.getpid():
            print('asked', operation, flush=True)
        elif operation == 26:
            answer(struct.pack('<4I2H2I2H', 7, 31, 0, 0, 16, 12, 65536, 1, 0, 0) + bytes(28))
        elif operation == 1:
            answer(struct.pack('<4Q2I', 2, 0, 3600, 0, 0, 0) + attributes(2))
        elif operation == 3:
            answer(struct.pack('<Q2I', 0, 0, 0) + attributes(inode))
        elif operation in (14, 27):
            answer(struct.pack('<Q2I', 1, 0, 0))
        elif operation in (18, 25, 29):
            answer()
        elif operation not in (2, 36, 42):
            answer(error=-38)
threading.Thread(target=serve, daemon=True).start()
file = os.open(place + '/' + name, os.O_RDONLY)
is_open = True
libc.umount2(place.encode(), 2)
try:
    if len(sys.argv) > 4:
        daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        daemon.connect('\\0' + sys.argv[4])
        socket.send_fds(daemon, [bytes.fromhex(sys.argv[5])], [file])
    print('open', flush=True)
    sys.stdin.read()
except OSError as error:
    print('not passed:', error, flush=True)
# While somebody answers: a process that ends cannot.
os.close(file)
os._exit(0)
";

/// The server of a file that is open in its own process.
#[derive(Debug)]
pub struct Server {
    process: Process,
    input: Option<ChildStdin>,
}

impl Server {
    /// Serves the file `name`, mounted below `directory` for a moment. It passes it to where `passed` says, beside the message there, in hex. The error is why there is no FUSE here.
    pub fn start(
        directory: &Path,
        name: &str,
        unanswered: &[u32],
        passed: Option<(&str, &str)>,
    ) -> Result<Server, String> {
        let place = directory.join("fuse");
        std::fs::create_dir(&place).expect("one's own directory");
        let mut program = command("python3", ["-c", SERVER]);
        let unanswered: Vec<String> = unanswered.iter().map(u32::to_string).collect();
        program.arg(place).args([name, &unanswered.join(",")]);
        if let Some((socket, message)) = passed {
            program.args([socket, message]);
        }
        let (process, input) = Process::spawn_with_stdin(program);
        let server = Server { process, input: Some(input) };
        let began = || server.process.stdout().lines().any(|line| line == "open" || line.starts_with("no"));
        server.process.wait_until("the file is open", Duration::from_secs(10), began).unwrap_or_else(|e| panic!("{e}"));
        let said = server.process.stdout();
        assert!(!said.contains("not passed"), "{said}");
        match said.lines().find(|line| line.starts_with("no FUSE")) {
            Some(why) => Err(why.to_owned()),
            None => Ok(server),
        }
    }

    /// Returns when somebody waits for the answer.
    pub fn wait_until_asked(&self, question: u32) {
        self.process.wait_for_output(&format!("asked {question}\n"), Duration::from_secs(10));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.input = None;
        // Killed, it would wait for itself to answer when its file is closed.
        let _ = self.process.wait(Duration::from_secs(10));
    }
}
