//! A piece of memory: its bytes, and by byte who wrote it last and who read it last.

/// A region's bytes: its own, or those of the process.
#[derive(Debug)]
pub enum Bytes {
    /// Its own.
    Own(Vec<u8>),
    /// Somebody else's, lent by [`Region::lent`].
    Lent(*mut u8, usize),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            // SAFETY: whoever called `Region::lent` promised so many bytes there for as long as the
            // region lives.
            Bytes::Lent(at, len) => unsafe { std::slice::from_raw_parts(*at, *len) },
        }
    }
}

impl std::ops::DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            // SAFETY: as above, and nobody else touches them meanwhile.
            Bytes::Lent(at, len) => unsafe { std::slice::from_raw_parts_mut(*at, *len) },
        }
    }
}

/// A piece of memory that the launch was given.
#[derive(Debug)]
pub struct Region {
    /// For messages: "buffer 2 (out)".
    pub what: String,
    /// Where it begins.
    pub address: u64,
    /// What is in it.
    pub bytes: Bytes,
    /// Whether the kernel may write there.
    pub writable: bool,
    /// By byte, once something was written: a [`Mark`](crate::order::Mark).
    pub marks: Vec<u64>,
    /// By two bytes, once something was read that may be written: the two waves that read them
    /// last.
    pub readers: Vec<[u64; 2]>,
}

impl Region {
    /// A region with its content.
    pub fn new(what: impl Into<String>, address: u64, bytes: Vec<u8>, writable: bool) -> Region {
        Region {
            what: what.into(),
            address,
            bytes: Bytes::Own(bytes),
            writable,
            marks: Vec::new(),
            readers: Vec::new(),
        }
    }

    /// Memory of this process, at its own address.
    ///
    /// # Safety
    /// `len` bytes from `at` on are there, and nobody else touches them, as long as the region
    /// lives.
    pub unsafe fn lent(what: impl Into<String>, at: *mut u8, len: usize, writable: bool) -> Region {
        Region {
            what: what.into(),
            address: at as u64,
            bytes: Bytes::Lent(at, len),
            writable,
            marks: Vec::new(),
            readers: Vec::new(),
        }
    }
}
