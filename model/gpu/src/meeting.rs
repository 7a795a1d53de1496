//! Where devices that compute one model together meet: the memory of `kjit_kernels::reduce`.
//!
//! Devices that reach each other have an inbox each in their own memory. Others have one inbox for
//! all in page-locked memory of the host: a device has a place of its own in each inbox, so there
//! is nothing to keep apart, and what it reads from the host's memory is what all have written
//! there.

use super::plan::{Meeting, Room};
use kjit_engine::{Device, DeviceBuffer, PinnedBuffer};
use kjit_exec::SessionError;
use kjit_plan::WORDS;
use kjit_ranks::{Far, Waiting};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a device waits for the others. A meeting takes µs; what comes between two of a device's
/// own may be a kernel's first launch, or another process that has the device.
const LIMIT: Duration = Duration::from_secs(10);

/// Whose memory devices meet in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// That of each device, which the others write to.
    Devices,
    /// The host's.
    Host,
    /// This device's alone: a library brings what others have, which are other processes'.
    Own,
}

/// One device's.
#[derive(Debug, Clone)]
pub struct MeetingPlace {
    words: DeviceBuffer<u32>,
    late: PinnedBuffer<u32>,
    /// By rank.
    inboxes: Vec<DeviceBuffer<u64>>,
    /// Likewise, for rows of prompts.
    rows: Vec<DeviceBuffer<u32>>,
    rank: usize,
    room: Room,
    way: Way,
    /// What others have made, one behind the other, and who brings it, where they are other
    /// processes'.
    far: Option<(DeviceBuffer<f32>, Arc<Far>)>,
    /// Of all of them: one has failed, and the others wait for nothing any more.
    over: Arc<AtomicBool>,
}

impl MeetingPlace {
    /// Those of all devices, in their order, with so much room for each, and in memory that all of
    /// them reach.
    pub fn of(devices: &[Device], room: Room, way: Way) -> Result<Vec<MeetingPlace>, SessionError> {
        let words = room.words(devices.len());
        let (packets, values) =
            words.ok_or_else(|| SessionError::Device(format!("no address has {room:?}")))?;
        // A model without a program for prompts has no rows.
        let (packets, values) = (packets.max(1), values.max(1));
        let (mut inboxes, mut rows) = (vec![], vec![]);
        match way {
            Way::Own => {}
            Way::Devices => {
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
            Way::Host => {
                inboxes = Device::shared_in_host(devices, packets)?;
                rows = Device::shared_in_host(devices, values)?;
            }
        }
        // As this device has them.
        let seen = |rank: usize| match (way, inboxes.get(rank), rows.get(rank)) {
            (Way::Host, Some(inbox), Some(of_rows)) => {
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
            Ok(MeetingPlace { words, late, inboxes, rows, rank, room, way, far: None, over })
        };
        devices.iter().enumerate().map(place).collect()
    }

    /// That of a device among `ranks` processes' with so much room; `far` makes who brings the
    /// others' parts, of the word in which the device counts its sums.
    pub fn of_rank(
        device: &Device,
        (rank, ranks): (usize, usize),
        room: Room,
        far: impl FnOnce(PinnedBuffer<u32>) -> Result<Far, SessionError>,
    ) -> Result<MeetingPlace, SessionError> {
        let values = usize::try_from(room.gathered).ok().and_then(|n| n.checked_mul(ranks));
        let values =
            values.ok_or_else(|| SessionError::Device(format!("no address has {room:?}")))?;
        let (words, late, stream) = (device.buffer(WORDS)?, device.pinned(1)?, device.stream()?);
        stream.fill(&words, 0)?;
        stream.synchronize()?;
        late.write(|to| to.fill(0))?;
        let far = Some((device.buffer(values.max(1))?, Arc::new(far(late.clone())?)));
        let over = Arc::new(AtomicBool::new(false));
        Ok(MeetingPlace {
            words,
            late,
            inboxes: vec![],
            rows: vec![],
            rank,
            room,
            way: Way::Own,
            far,
            over,
        })
    }

    /// Who brings the others' parts, where these are other processes'.
    pub fn far(&self) -> Option<&Far> {
        self.far.as_ref().map(|(_, far)| &**far)
    }

    /// As long as it lives, a library's work is waited for.
    pub fn waiting(&self) -> Option<Waiting> {
        self.far().map(Far::waiting)
    }

    /// Devices.
    pub fn ranks(&self) -> usize {
        self.inboxes.len()
    }

    /// Whose memory it is.
    pub fn way(&self) -> Way {
        self.way
    }

    /// What there is room for.
    pub fn room(&self) -> Room {
        self.room
    }

    /// What of it is memory.
    pub fn memory(&self, what: Meeting) -> Option<DeviceBuffer<u8>> {
        let place = |behind: usize| (self.rank + behind) % self.ranks().max(1);
        let inbox = |behind| self.inboxes.get(place(behind))?.cast().ok();
        let rows = |behind| self.rows.get(place(behind))?.cast().ok();
        match what {
            Meeting::Words => self.words.cast().ok(),
            Meeting::Late => self.late.on_device().cast().ok(),
            Meeting::Inbox => inbox(0),
            Meeting::To(i) => inbox(1 + i as usize),
            Meeting::Gathered => self.far.as_ref()?.0.cast().ok(),
            Meeting::Rows => rows(0),
            Meeting::RowsTo(i) => rows(1 + i as usize),
            Meeting::Room | Meeting::RowsRoom | Meeting::Limit => None,
        }
    }

    /// What of it is a number.
    pub fn number(&self, what: Meeting) -> u64 {
        match what {
            Meeting::Limit => LIMIT.as_nanos() as u64,
            Meeting::RowsRoom => self.room.values,
            _ => self.room.packets,
        }
    }

    /// One has failed: what the others wait for may never come.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
        if let Some(far) = self.far() {
            far.end();
        }
    }

    /// Whether one has failed.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.far().is_some_and(Far::is_over)
    }

    /// Why the other processes' devices are waited for no more, if so, in the place of what a call
    /// said: the library was told to give up for that reason, so that is all the call has to say.
    pub fn instead(&self, device: &Device, said: SessionError) -> SessionError {
        self.far().and_then(|far| far.check(device).err()).unwrap_or(said)
    }

    /// Whether the others came to every meeting so far.
    pub fn check(&self, device: &Device) -> Result<(), SessionError> {
        if let Some(far) = self.far() {
            return far.check(device);
        }
        match self.late.peek(0)? {
            0 if self.is_over() => Err(SessionError::Lost(format!(
                "another of the devices that compute the model with {} has failed",
                device.label()
            ))),
            0 => Ok(()),
            _ => Err(SessionError::Lost(format!(
                "{} waited longer than {} s for the devices that compute the model with it: one \
                 of them is lost or hangs",
                device.label(),
                LIMIT.as_secs()
            ))),
        }
    }
}
