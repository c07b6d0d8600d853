//! Packets on their way, in memory that is used again.

use crate::Ecn;

/// Index into [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameId(u32);

#[derive(Debug)]
pub(super) struct Frame {
    pub bytes: Vec<u8>,
    pub from: u32,
    pub to: u32,
    pub ecn: Ecn,
    /// Its checksum does not fit any more, and whoever checks it drops it.
    pub damaged: bool,
    /// Its length in buffers.
    pub frame_bytes: u64,
}

/// All packets on their way.
#[derive(Debug, Default)]
pub(super) struct Frames {
    frames: Vec<Frame>,
    free: Vec<FrameId>,
    /// Memory of frames that went: nothing is allocated once there were as many on the way as there will be.
    spare: Vec<Vec<u8>>,
}

impl Frames {
    /// A buffer without contents.
    pub fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Takes back what [`Frames::take`] gave.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    pub fn insert(&mut self, frame: Frame) -> FrameId {
        if let Some(id) = self.free.pop() {
            self.frames[id.0 as usize] = frame;
            return id;
        }
        self.frames.push(frame);
        FrameId(self.frames.len() as u32 - 1)
    }

    pub fn get(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    pub fn get_mut(&mut self, id: FrameId) -> &mut Frame {
        &mut self.frames[id.0 as usize]
    }

    /// A second one with the same contents.
    pub fn copy(&mut self, id: FrameId) -> FrameId {
        let mut bytes = self.buffer();
        let frame = self.get(id);
        bytes.extend_from_slice(&frame.bytes);
        let copy = Frame { bytes, ..*frame };
        self.insert(copy)
    }

    /// Ends a frame and hands out its bytes, to be given back by [`Frames::recycle`].
    pub fn take(&mut self, id: FrameId) -> Vec<u8> {
        self.free.push(id);
        std::mem::take(&mut self.get_mut(id).bytes)
    }

    pub fn remove(&mut self, id: FrameId) {
        let bytes = self.take(id);
        self.recycle(bytes);
    }

    /// Frames on their way now.
    pub fn len(&self) -> usize {
        self.frames.len() - self.free.len()
    }
}
