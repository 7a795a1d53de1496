//! Exchange buffers of devices that compute one model together: memory for `kjit_kernels::reduce`.
//!
//! With peer access, each device has an inbox in its own memory. Other devices share one inbox in
//! page-locked host memory. Each device has a separate part of every inbox, so writes never
//! overlap.

use super::plan::{AllReduceArg, ExchangeSizes};
use kjit_engine::{Device, DeviceBuffer, PinnedBuffer};
use kjit_exec::SessionError;
use kjit_plan::WORDS;
use kjit_ranks::{DeviceWait, RemoteRanks};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time limit of a device's wait for the others. An exchange takes microseconds, but a kernel's
/// first launch or another process on the device may delay it.
const LIMIT: Duration = Duration::from_secs(10);

/// The memory of the inboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InboxMemory {
    /// Memory of each device, written by the others.
    Devices,
    /// Host memory.
    Host,
    /// Memory of this device only: the vendor's library transfers the parts of other processes.
    Own,
}

/// The exchange buffers of one device.
#[derive(Debug, Clone)]
pub struct Exchange {
    words: DeviceBuffer<u32>,
    late: PinnedBuffer<u32>,
    /// Inboxes by rank.
    inboxes: Vec<DeviceBuffer<u64>>,
    /// Buffers for rows of prompts, by rank.
    rows: Vec<DeviceBuffer<u32>>,
    rank: usize,
    room: ExchangeSizes,
    way: InboxMemory,
    /// With several processes: the gathered parts in the order of ranks, and the connection to the
    /// other ranks.
    far: Option<(DeviceBuffer<f32>, Arc<RemoteRanks>)>,
    /// Set if a device has failed. The other devices must then not wait. All devices share it.
    over: Arc<AtomicBool>,
}

impl Exchange {
    /// The exchange buffers of all devices in order, with `room` in memory of kind `way`.
    pub fn of(
        devices: &[Device],
        room: ExchangeSizes,
        way: InboxMemory,
    ) -> Result<Vec<Exchange>, SessionError> {
        let words = room.words(devices.len());
        let (packets, values) = words.ok_or_else(|| {
            SessionError::Device(format!("the exchange buffers are too large: {room:?}"))
        })?;
        // A model without prompt programs has no rows.
        let (packets, values) = (packets.max(1), values.max(1));
        let (mut inboxes, mut rows) = (vec![], vec![]);
        match way {
            InboxMemory::Own => {}
            InboxMemory::Devices => {
                for device in devices {
                    let stream = device.stream()?;
                    let (inbox, of_rows) =
                        (device.shared_buffer(packets)?, device.shared_buffer(values)?);
                    stream.fill(&inbox, 0)?;
                    stream.fill(&of_rows, 0)?;
                    stream.synchronize()?;
                    inboxes.push(inbox);
                    rows.push(of_rows);
                }
            }
            InboxMemory::Host => {
                inboxes = Device::shared_in_host(devices, packets)?;
                rows = Device::shared_in_host(devices, values)?;
            }
        }
        // The buffers at this device's addresses.
        let seen = |rank: usize| match (way, inboxes.get(rank), rows.get(rank)) {
            (InboxMemory::Host, Some(inbox), Some(of_rows)) => {
                (vec![inbox.clone(); inboxes.len()], vec![of_rows.clone(); rows.len()])
            }
            _ => (inboxes.clone(), rows.clone()),
        };
        let over = Arc::new(AtomicBool::new(false));
        let place = |(rank, device): (usize, &Device)| {
            let (words, late, stream) =
                (device.buffer(WORDS)?, device.pinned(1)?, device.stream()?);
            stream.fill(&words, 0)?;
            stream.synchronize()?;
            late.write(|to| to.fill(0))?;
            let ((inboxes, rows), over) = (seen(rank), Arc::clone(&over));
            Ok(Exchange { words, late, inboxes, rows, rank, room, way, far: None, over })
        };
        devices.iter().enumerate().map(place).collect()
    }

    /// The exchange buffers of a device whose peers are in other processes. `far` opens the
    /// connection to the ranks. It gets the word in which the device counts its sums.
    pub fn of_rank(
        device: &Device,
        (rank, ranks): (usize, usize),
        room: ExchangeSizes,
        far: impl FnOnce(PinnedBuffer<u32>) -> Result<RemoteRanks, SessionError>,
    ) -> Result<Exchange, SessionError> {
        let values = usize::try_from(room.gathered).ok().and_then(|n| n.checked_mul(ranks));
        let values = values.ok_or_else(|| {
            SessionError::Device(format!("the exchange buffers are too large: {room:?}"))
        })?;
        let (words, late, stream) = (device.buffer(WORDS)?, device.pinned(1)?, device.stream()?);
        stream.fill(&words, 0)?;
        stream.synchronize()?;
        late.write(|to| to.fill(0))?;
        let far = Some((device.buffer(values.max(1))?, Arc::new(far(late.clone())?)));
        let over = Arc::new(AtomicBool::new(false));
        Ok(Exchange {
            words,
            late,
            inboxes: vec![],
            rows: vec![],
            rank,
            room,
            way: InboxMemory::Own,
            far,
            over,
        })
    }

    /// The connection to the ranks in other processes.
    pub fn far(&self) -> Option<&RemoteRanks> {
        self.far.as_ref().map(|(_, far)| &**far)
    }

    /// Marks a call as waiting for the library's work while the returned value exists.
    pub fn waiting(&self) -> Option<DeviceWait> {
        self.far().map(RemoteRanks::waiting)
    }

    /// The number of devices.
    pub fn ranks(&self) -> usize {
        self.inboxes.len()
    }

    /// The memory of the inboxes.
    pub fn way(&self) -> InboxMemory {
        self.way
    }

    /// The sizes.
    pub fn room(&self) -> ExchangeSizes {
        self.room
    }

    /// The buffer for an argument of the kernel, if the argument is a buffer.
    pub fn memory(&self, what: AllReduceArg) -> Option<DeviceBuffer<u8>> {
        let place = |behind: usize| (self.rank + behind) % self.ranks().max(1);
        let inbox = |behind| self.inboxes.get(place(behind))?.cast().ok();
        let rows = |behind| self.rows.get(place(behind))?.cast().ok();
        match what {
            AllReduceArg::Words => self.words.cast().ok(),
            AllReduceArg::Late => self.late.on_device().cast().ok(),
            AllReduceArg::Inbox => inbox(0),
            AllReduceArg::To(i) => inbox(1 + i as usize),
            AllReduceArg::Gathered => self.far.as_ref()?.0.cast().ok(),
            AllReduceArg::Rows => rows(0),
            AllReduceArg::RowsTo(i) => rows(1 + i as usize),
            AllReduceArg::Room | AllReduceArg::RowsRoom | AllReduceArg::Limit => None,
        }
    }

    /// The number for an argument of the kernel, if the argument is a number.
    pub fn number(&self, what: AllReduceArg) -> u64 {
        match what {
            AllReduceArg::Limit => LIMIT.as_nanos() as u64,
            AllReduceArg::RowsRoom => self.room.values,
            _ => self.room.packets,
        }
    }

    /// Records that a device has failed, so that the others do not wait for it.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        if let Some(far) = self.far() {
            far.end();
        }
    }

    /// Whether a device has failed.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.far().is_some_and(RemoteRanks::is_over)
    }

    /// Replaces the error of a call by the reason why the wait for the ranks ended, if there is
    /// one. The library was then aborted, and the call reports only the abort.
    pub fn instead(&self, device: &Device, said: SessionError) -> SessionError {
        self.far().and_then(|far| far.check(device).err()).unwrap_or(said)
    }

    /// Whether every exchange so far was complete.
    pub fn check(&self, device: &Device) -> Result<(), SessionError> {
        if let Some(far) = self.far() {
            return far.check(device);
        }
        match self.late.peek(0)? {
            0 if self.is_over() => Err(SessionError::Lost(format!(
                "a device that computes the model together with {} has failed",
                device.label()
            ))),
            0 => Ok(()),
            _ => Err(SessionError::Lost(format!(
                "{} waited longer than {} s for the other devices of the model: \
                 a device is lost or hangs",
                device.label(),
                LIMIT.as_secs()
            ))),
        }
    }
}
