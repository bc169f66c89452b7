//! The system's allocator, with a count for each thread of what is held and of the most that was.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::targets::meter::{METER, Meter};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Lets [`crate::targets::meter::peak`] count.
pub fn install() {
    let _ = METER.set(Meter {
        begin: || {
            HELD.set(0);
            PEAK.set(0);
        },
        peak: || usize::try_from(PEAK.get()).unwrap_or(0),
    });
}

fn took(bytes: usize) {
    // While a thread ends its counters may be gone, and nobody asks for them.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes as isize);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn gave(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get() - bytes as isize));
}

// SAFETY: everything is left to the system's allocator; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Old and new may both exist for a moment.
        took(bytes);
        gave(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, bytes) }
    }
}
