//! What the machine has for doing damage, found out before anything is damaged.
//!
//! Where something cannot be had here it is said, and that fault is left out; with
//! `LEASEHOLD_REQUIRE_FAULTS` set it is an error instead. It is said again at the end of each run.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::Node;
pub(crate) use crate::harness::left_out;

/// What the machine has for doing damage.
pub(crate) struct Tools {
    pub(crate) strace: Option<PathBuf>,
    pub(crate) faketime: Option<PathBuf>,
    pub(crate) clocks: bool,
    pub(crate) disks: bool,
}

impl Tools {
    pub(crate) fn find() -> Self {
        let runs = |program: &str, arguments: &[&str]| {
            let ended = Command::new(program)
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            ended.is_ok_and(|status| status.success())
        };
        let library = "lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
        let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/usr");
        let places = [unpacked.clone(), PathBuf::from("/usr")];
        let faketime = places.iter().map(|place| place.join(library));
        let strace = [unpacked.join("bin/strace"), PathBuf::from("strace")];
        let inject = ["-qq", "-o", "/dev/null", "-e", "inject=fsync:delay_enter=1"];
        let tools = Self {
            strace: strace.into_iter().find(|strace| {
                let strace = strace.to_str().unwrap_or_default();
                runs(strace, &[inject.as_slice(), &["true"]].concat())
            }),
            faketime: faketime.into_iter().find(|library| library.exists()),
            clocks: runs(
                "unshare",
                &["-T", "--boottime", "60", "--monotonic", "60", "true"],
            ),
            disks: runs("mkfs.ext4", &["-V"]) && runs("losetup", &["--find"]),
        };
        let all = [
            ("slow and failing disks", "strace", tools.strace.is_some()),
            ("wall clocks", "libfaketime", tools.faketime.is_some()),
            (
                "clocks that begin anew",
                "unshare -T, as root",
                tools.clocks,
            ),
            ("full disks", "loop devices and mkfs.ext4", tools.disks),
        ];
        for (fault, needs, is_there) in all {
            if !is_there {
                left_out(&format!("{fault}: needs {needs}"));
            }
        }
        tools
    }

    /// Has each sync of a node take so long, until the tracer is let go ([`let_go`]). None if it
    /// cannot be traced.
    pub(crate) fn slow_syncs(&self, node: &Node, each: Duration) -> Option<Child> {
        let inject = format!("inject=fsync,fdatasync:delay_enter={}", each.as_micros());
        self.trace(node, &inject)
    }

    /// Has each sync of a node fail.
    pub(crate) fn fail_syncs(&self, node: &Node) -> Option<Child> {
        self.trace(node, "inject=fsync,fdatasync:error=EIO")
    }

    /// Has the syncs of a node tampered with.
    fn trace(&self, node: &Node, inject: &str) -> Option<Child> {
        let strace = self.strace.as_ref()?;
        let process = node.process.as_ref()?;
        let syncs = "trace=fsync,fdatasync";
        let child = Command::new(strace)
            .args(["-f", "-qq", "-o", "/dev/null", "-e", syncs])
            .args(["-e", inject, "-p", &process.id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.ok()
    }
}

/// A file system in a file.
pub(crate) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Makes and mounts one of `bytes` at `at`; none if that is not possible here.
    pub(crate) fn mount(at: &Path, bytes: u64) -> Option<Self> {
        let image = at.with_extension("disk");
        let file = fs::File::create(&image).unwrap();
        file.set_len(bytes).unwrap();
        fs::create_dir_all(at).unwrap();
        let image = image.to_str().unwrap();
        let ok = |program: &str, arguments: &[&str]| {
            let status = Command::new(program).args(arguments).status();
            status.is_ok_and(|status| status.success())
        };
        let is_mounted = ok("mkfs.ext4", &["-q", "-F", image])
            && ok("mount", &["-o", "loop", image, at.to_str().unwrap()]);
        is_mounted.then(|| Self { at: at.to_owned() })
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }

    /// Leaves not a byte.
    pub(crate) fn fill(&self) {
        let mut file = fs::File::create(self.ballast()).unwrap();
        // What is set aside is as full as what is written, and no disk has to take it. All of it at once, as far as the
        // file system needs none of it for that: a node that looks meanwhile would find a disk that is nearly full, and
        // begin to make room there.
        let (mut end, mut size) = (0, self.available());
        while size >= 1 << 20 {
            match fallocate(&file, FallocateFlags::empty(), end, size) {
                Ok(()) => (end, size) = (end + size, self.available()),
                Err(_) => size -= 1 << 20,
            }
        }
        file.seek(SeekFrom::Start(end)).unwrap();
        let mut block = vec![0x5A; 1 << 20];
        while !block.is_empty() {
            if file.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
    }

    /// The bytes that are left.
    pub(crate) fn available(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.at).unwrap();
        found.f_bavail * found.f_frsize
    }

    pub(crate) fn free(&self) {
        let _ = fs::remove_file(self.ballast());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// What `libfaketime` leaves behind of a process that was killed.
pub(crate) fn clean_up_after(process: u32) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
    }
}

/// Ends a tracer, so that what it traced goes on undisturbed.
pub(crate) fn let_go(mut child: Child) {
    let _ = kill_process(Pid::from_child(&child), Signal::INT);
    for _ in 0..100 {
        if child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}
