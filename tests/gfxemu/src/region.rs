//! A memory region: its bytes, and for each byte the last writer and the last readers.

/// The bytes of a region: owned, or memory of the process.
#[derive(Debug)]
pub enum Bytes {
    /// Owned bytes.
    Own(Vec<u8>),
    /// Borrowed memory of the process, from [`Region::lent`].
    Lent(*mut u8, usize),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            // SAFETY: the caller of `Region::lent` promised this many bytes for the life of the
            // region.
            Bytes::Lent(at, len) => unsafe { std::slice::from_raw_parts(*at, *len) },
        }
    }
}

impl std::ops::DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Own(bytes) => bytes,
            // SAFETY: the caller of `Region::lent` promised this many bytes for the life of the
            // region, and that nothing else accesses them.
            Bytes::Lent(at, len) => unsafe { std::slice::from_raw_parts_mut(*at, *len) },
        }
    }
}

/// A memory region of a launch.
#[derive(Debug)]
pub struct Region {
    /// Name for messages: "buffer 2 (out)".
    pub what: String,
    /// Address of its first byte.
    pub address: u64,
    /// The content of the region.
    pub bytes: Bytes,
    /// Whether the kernel may write there.
    pub writable: bool,
    /// A [`LastAccess`](crate::order::LastAccess) for each byte. Empty before the first write.
    pub marks: Vec<u64>,
    /// The last two waves that read each pair of bytes in a writable region. Empty before the first
    /// read.
    pub readers: Vec<[u64; 2]>,
}

impl Region {
    /// A region that owns its content.
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

    /// A region of borrowed memory of this process, at its real address.
    ///
    /// # Safety
    /// `len` bytes from `at` on are valid, and nothing else accesses them, for the life of the
    /// region.
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
