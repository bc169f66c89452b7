//! Asks the hypervisor whether it has disrupted the machine's clocks.
//!
//! The VMClock device of a guest (Linux: `/dev/vmclock0`, driver `ptp_vmclock`) is one page that the hypervisor
//! writes. Its *disruption marker* has another value after every live migration and after every restore of a
//! memory image, before the guest runs on. The page is read with a system call, which the kernel
//! answers from one state of the page.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// "VCLK".
const MAGIC: u32 = 0x4b4c_4356;
const SIZE_AT: usize = 4;
const MARKER_AT: usize = 16;
/// Of the page, up to the end of the marker.
const HEAD_BYTES: usize = 24;

/// An open VMClock device.
#[derive(Debug)]
pub(super) struct VmClock {
    page: File,
    /// The marker of the last disruption that is counted, or of the beginning.
    marker: AtomicU64,
    /// Written before the marker: who finds the marker counted finds the count.
    disruptions: AtomicU64,
    counting: Mutex<()>,
}

impl VmClock {
    /// Opens the device; what it tells of is counted from here on.
    pub(super) fn open(device: &Path) -> io::Result<Self> {
        let page = File::open(device)?;
        let mut head = [0; HEAD_BYTES];
        page.read_exact_at(&mut head, 0)?;
        let number = |at: usize| {
            let bytes = [head[at], head[at + 1], head[at + 2], head[at + 3]];
            u32::from_le_bytes(bytes)
        };
        if number(0) != MAGIC || (number(SIZE_AT) as usize) < HEAD_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "this is no VMClock device",
            ));
        }
        let vm_clock = Self {
            page,
            marker: AtomicU64::new(0),
            disruptions: AtomicU64::new(0),
            counting: Mutex::new(()),
        };
        let marker = vm_clock.read_marker()?;
        vm_clock.marker.store(marker, Ordering::Release);
        Ok(vm_clock)
    }

    fn read_marker(&self) -> io::Result<u64> {
        let mut marker = [0; 8];
        self.page.read_exact_at(&mut marker, MARKER_AT as u64)?;
        Ok(u64::from_le_bytes(marker))
    }

    /// How many disruptions there were until now; `None` while the device does not answer.
    pub(super) fn disruptions(&self) -> Option<u64> {
        let marker = self.read_marker().ok()?;
        if marker != self.marker.load(Ordering::Acquire) {
            self.count()?;
        }
        Some(self.seen())
    }

    /// As [`Self::disruptions`], as far as was asked before.
    pub(super) fn seen(&self) -> u64 {
        self.disruptions.load(Ordering::Acquire)
    }

    /// Counts the disruption that the marker tells of: once, however many threads have seen it.
    fn count(&self) -> Option<()> {
        let counting = self.counting.lock();
        let _counting = counting.unwrap_or_else(PoisonError::into_inner);
        // Read again: another thread may have counted a later one since this one looked.
        let marker = self.read_marker().ok()?;
        if marker != self.marker.load(Ordering::Acquire) {
            self.disruptions.fetch_add(1, Ordering::AcqRel);
            self.marker.store(marker, Ordering::Release);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// A page as a hypervisor makes it.
    fn page(marker: u64) -> Vec<u8> {
        let mut page = vec![0; 4096];
        page[..4].copy_from_slice(&MAGIC.to_le_bytes());
        page[SIZE_AT..8].copy_from_slice(&4096_u32.to_le_bytes());
        page[MARKER_AT..HEAD_BYTES].copy_from_slice(&marker.to_le_bytes());
        page
    }

    #[test]
    fn each_change_of_the_marker_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("vmclock0");
        fs::write(&device, page(7)).unwrap();
        let vm_clock = VmClock::open(&device).unwrap();
        assert_eq!(vm_clock.disruptions(), Some(0));
        for (marker, expected) in [(8, 1), (8, 1), (9, 2), (8, 3)] {
            fs::write(&device, page(marker)).unwrap();
            assert_eq!(vm_clock.disruptions(), Some(expected), "{marker}");
            assert_eq!(vm_clock.seen(), expected);
        }
        // A device that says nothing leaves it open what happened.
        fs::write(&device, []).unwrap();
        assert_eq!(vm_clock.disruptions(), None);
        assert_eq!(vm_clock.seen(), 3);
        fs::write(&device, page(8)).unwrap();
        assert_eq!(vm_clock.disruptions(), Some(3));
    }

    #[test]
    fn nobody_who_asks_after_a_disruption_misses_it() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("vmclock0");
        fs::write(&device, page(0)).unwrap();
        let vm_clock = VmClock::open(&device).unwrap();
        let happened = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        let before = happened.load(Ordering::Acquire);
                        let counted = vm_clock.disruptions().unwrap();
                        assert!(counted >= before.min(1), "{counted} of {before}");
                    }
                });
            }
            let file = File::options().write(true).open(&device).unwrap();
            for marker in 1..=200_u64 {
                file.write_all_at(&marker.to_le_bytes(), MARKER_AT as u64)
                    .unwrap();
                happened.store(marker, Ordering::Release);
                let counted = vm_clock.disruptions().unwrap();
                assert!(counted >= 1 && counted <= marker);
                assert_eq!(vm_clock.marker.load(Ordering::Acquire), marker);
            }
            is_over.store(true, Ordering::Release);
        });
        assert_eq!(vm_clock.disruptions(), Some(200));
    }

    #[test]
    fn what_is_no_such_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("vmclock0");
        assert!(VmClock::open(&device).is_err());
        for wrong in [
            Vec::new(),
            vec![0; 4096],
            page(0)[..HEAD_BYTES - 1].to_vec(),
        ] {
            fs::write(&device, wrong).unwrap();
            assert!(VmClock::open(&device).is_err());
        }
        let mut short = page(0);
        short[SIZE_AT] = 16;
        short[SIZE_AT + 1] = 0;
        fs::write(&device, short).unwrap();
        let refused = VmClock::open(&device).unwrap_err();
        assert!(refused.to_string().contains("no VMClock device"));
    }
}
