//! Frames over a Unix socket: a header, and the bytes of tensors, in the frame or in a memory file that comes with it.
//!
//! A frame is the sizes of its header and body, 4 bytes each, little-endian; then the header, JSON; then the body. Where tensors
//! have more than [`INLINE_BYTES`] the body is empty and they lie in a memory file, whose descriptor comes with the first byte.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use trireme_inference::{Buffer, Tensor, TensorError};

use crate::memory::{Identity, Mapped};
use crate::message::TensorHeader;

/// Above so many bytes tensors travel in a memory file.
pub const INLINE_BYTES: u64 = 64 << 10;

/// A memory file of at most so many bytes is written to again for the next requests: memory that a process has is faster than
/// memory that the system has to clear.
const SPARE_BYTES: u64 = 64 << 20;

/// Each tensor begins at a multiple of this, and so does the body.
const ALIGNMENT: u64 = 64;

/// Largest header and largest body, in bytes.
const MAX_PART: usize = 64 << 20;

/// Most frames are smaller. Larger ones make the buffer of received bytes grow.
const BUFFER_BYTES: usize = INLINE_BYTES as usize + (16 << 10);

/// The sizes of header and body, before them.
const PREFIX: usize = 8;

/// How long [`Link::receive_soon`] stays awake.
const SOON: Duration = Duration::from_micros(150);

/// The time limit for sending one frame, and for receiving the rest of a frame that has begun.
const FRAME_LIMIT: Duration = Duration::from_secs(10);

/// The worker's end of a socket to a child. One thread receives, any may send.
#[derive(Debug)]
pub struct Link {
    socket: UnixStream,
    sending: Mutex<()>,
    received: Mutex<Received>,
    memory: Mutex<Memory>,
}

/// Bytes that have come and are not a whole frame yet.
#[derive(Debug)]
struct Received {
    /// They lie in `buffer[begin..end]`.
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    /// The number of bytes that ever came.
    count: u64,
    /// Descriptors, each with the number of bytes that had come with it: it belongs to the frame with the last of those.
    memory: VecDeque<(u64, OwnedFd)>,
    /// The socket's time limit for receiving.
    limit: Duration,
}

/// The memory files of a link that are used more than once.
#[derive(Debug, Default)]
struct Memory {
    /// The file that the child reads while it executes.
    lent: Option<Mapped>,
    /// A file that the child has released.
    spare: Option<Mapped>,
    /// The file of the child's last answer.
    theirs: Option<Mapped>,
}

/// A frame that has come.
#[derive(Debug)]
pub struct Frame {
    /// Its header, JSON.
    pub header: Vec<u8>,
    /// The bytes of its tensors.
    pub data: Bytes,
}

/// Where the tensors of a frame lie.
#[derive(Debug, Default)]
pub struct Layout {
    buffers: Vec<(u64, Bytes)>,
    end: u64,
}

/// Why a link is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The child is gone.
    #[error("it has ended")]
    Closed,
    /// The socket failed, or a frame did not come to its end.
    #[error("its socket failed: {0}")]
    Io(#[from] io::Error),
    /// An `execute` of the child has passed the execution limit.
    #[error("its execute has not returned for {0} s (--execution-limit-secs)")]
    Overdue(f32),
    /// The child sent bytes that are no frame.
    #[error("it sent what is no frame: {0}")]
    Garbage(String),
}

// === impl Layout ===

impl Layout {
    /// Puts a tensor into the frame.
    pub fn add<'a>(&mut self, tensor: &'a Tensor) -> TensorHeader<'a> {
        let offset = self.end.next_multiple_of(ALIGNMENT);
        let size = tensor.data().len() as u64;
        self.buffers.push((offset, tensor.data().clone()));
        self.end = offset + size;
        TensorHeader {
            name: tensor.name().into(),
            datatype: tensor.datatype(),
            shape: (&tensor.shape()[..]).into(),
            offset,
            size,
        }
    }

    /// Whether the tensors need a memory file.
    fn is_large(&self) -> bool {
        self.end > INLINE_BYTES
    }

    /// Writes the tensors to a memory file: `spare` if it is large enough, else a new one.
    fn fill(&self, spare: Option<Mapped>) -> io::Result<Mapped> {
        let file = match spare.filter(|file| file.identity().bytes() >= self.end) {
            Some(file) => file,
            None => Mapped::create(self.end)?,
        };
        for (offset, data) in &self.buffers {
            file.write(*offset, data)?;
        }
        Ok(file)
    }

    fn write_to(&self, frame: &mut Vec<u8>) {
        let begin = frame.len();
        for (offset, data) in &self.buffers {
            frame.resize(begin + *offset as usize, 0);
            frame.extend_from_slice(data);
        }
    }
}

// === impl Frame ===

impl Frame {
    /// One of its tensors, checked.
    pub fn tensor(&self, header: &TensorHeader<'_>) -> Result<Tensor, TensorError> {
        let name = header.name.as_ref();
        let length = self.data.len() as u64;
        let end = header.offset.checked_add(header.size).filter(|&end| end <= length);
        let Some(end) = end else {
            return Err(TensorError::ByteSize {
                name: name.into(),
                datatype: header.datatype,
                shape: header.shape.to_vec().into(),
                expected: header.size,
                actual: length.saturating_sub(header.offset),
            });
        };
        let data = self.data.slice(header.offset as usize..end as usize);
        Tensor::new(name, header.datatype, header.shape.to_vec(), data)
    }
}

// === impl Link ===

impl Link {
    /// A link over a connected socket.
    pub fn new(socket: UnixStream) -> io::Result<Link> {
        socket.set_read_timeout(Some(FRAME_LIMIT))?;
        socket.set_write_timeout(Some(FRAME_LIMIT))?;
        Ok(Link { socket, sending: Mutex::new(()), received: Mutex::default(), memory: Mutex::default() })
    }

    /// Sends a frame.
    pub fn send(&self, header: &impl Serialize, layout: &Layout) -> Result<(), LinkError> {
        let memory = layout.is_large().then(|| layout.fill(None)).transpose()?;
        self.send_with(header, layout, memory.as_ref())
    }

    /// Sends requests to execute. Their memory file is used again once [`Link::executed`] says so.
    pub fn execute(&self, header: &impl Serialize, layout: &Layout) -> Result<(), LinkError> {
        if !layout.is_large() {
            return self.send_with(header, layout, None);
        }
        let spare = self.memory.lock().spare.take();
        let file = layout.fill(spare)?;
        let sent = self.send_with(header, layout, Some(&file));
        self.memory.lock().lent = (layout.end <= SPARE_BYTES).then_some(file);
        sent
    }

    /// The child has executed the requests of [`Link::execute`]. `released` says that it uses their memory no more.
    pub fn executed(&self, released: bool) {
        let mut memory = self.memory.lock();
        let lent = memory.lent.take();
        if released && lent.is_some() {
            memory.spare = lent;
        }
    }

    fn send_with(&self, header: &impl Serialize, layout: &Layout, memory: Option<&Mapped>) -> Result<(), LinkError> {
        let mut frame = vec![0; PREFIX];
        serde_json::to_writer(&mut frame, header).map_err(io::Error::from)?;
        // The body begins aligned; JSON may end in blanks.
        frame.resize((frame.len() - PREFIX).next_multiple_of(ALIGNMENT as usize) + PREFIX, b' ');
        let header_size = frame.len() - PREFIX;
        if memory.is_none() {
            layout.write_to(&mut frame);
        }
        let body_size = frame.len() - PREFIX - header_size;
        frame[..4].copy_from_slice(&(header_size as u32).to_le_bytes());
        frame[4..PREFIX].copy_from_slice(&(body_size as u32).to_le_bytes());
        let _sending = self.sending.lock();
        let sent = self.send_first(&frame, memory.map(AsFd::as_fd))?;
        Ok((&self.socket).write_all(&frame[sent..])?)
    }

    fn send_first(&self, frame: &[u8], memory: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(memory) = &memory {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(memory)));
        }
        Ok(sendmsg(&self.socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL)?)
    }

    /// Waits for a frame that is expected within microseconds: `None` when none has begun within [`SOON`]. The thread stays awake, because
    /// to fall asleep and to be woken takes longer; it yields the CPU to threads that can run.
    pub fn receive_soon(&self) -> Result<Option<Frame>, LinkError> {
        let mut received = self.received.lock();
        let until = Instant::now() + SOON;
        while received.end == received.begin && Instant::now() < until {
            match received.receive(&self.socket, RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => std::thread::yield_now(),
                Ok(1..) => {}
                _ => break,
            }
        }
        drop(received);
        self.receive(Duration::ZERO)
    }

    /// Waits for a frame, `limit` at most: `None` when none has begun by then.
    pub fn receive(&self, limit: Duration) -> Result<Option<Frame>, LinkError> {
        let mut received = self.received.lock();
        loop {
            if let Some((header, body, memory)) = received.take()? {
                let data = match memory {
                    None => body,
                    Some(memory) => self.read(File::from(memory))?,
                };
                return Ok(Some(Frame { header, data }));
            }
            let has_begun = received.end > received.begin;
            let limit = if has_begun { FRAME_LIMIT } else { limit };
            if received.limit != limit {
                // Zero would be no limit.
                self.socket.set_read_timeout(Some(limit.max(Duration::from_micros(1))))?;
                received.limit = limit;
            }
            match received.receive(&self.socket, RecvFlags::empty()) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) if !has_begun => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) | Ok(0) => return Err(LinkError::Closed),
                Err(error) => return Err(io::Error::from(error).into()),
                Ok(_) => {}
            }
        }
    }

    /// The bytes of a memory file. They are copied, so that later writes of the child have no effect.
    fn read(&self, file: File) -> io::Result<Bytes> {
        let identity = Identity::of(&file)?;
        let size = usize::try_from(identity.bytes()).map_err(io::Error::other)?;
        let known = self.memory.lock().theirs.take().filter(|known| known.identity() == identity);
        let mapped = match known {
            Some(known) => known,
            None => match Mapped::open(file)? {
                Ok(mapped) => mapped,
                Err(file) => return Buffer::filled(size, |bytes| file.read_exact_at(bytes, 0)),
            },
        };
        let read = Buffer::filled(size, |bytes| mapped.read(bytes));
        if identity.bytes() <= SPARE_BYTES {
            self.memory.lock().theirs = Some(mapped);
        }
        read
    }
}

/// The header of a frame, its body, and the memory file that came with it.
type Parts = (Vec<u8>, Bytes, Option<OwnedFd>);

// === impl Received ===

impl Received {
    /// Takes the first frame out, once it is whole.
    fn take(&mut self) -> Result<Option<Parts>, LinkError> {
        let Some((&[a, b, c, d, e, f, g, h], rest)) = self.buffer[self.begin..self.end].split_first_chunk() else {
            return Ok(None);
        };
        let size = |bytes: [u8; 4]| u32::from_le_bytes(bytes) as usize;
        let (header_size, body_size) = (size([a, b, c, d]), size([e, f, g, h]));
        if header_size > MAX_PART || body_size > MAX_PART {
            return Err(LinkError::Garbage(format!(
                "a header of {header_size} and a body of {body_size} bytes, expected {MAX_PART} at most"
            )));
        }
        if rest.len() < header_size + body_size {
            let needed = PREFIX + header_size + body_size;
            self.buffer.resize(needed.max(self.buffer.len()), 0);
            return Ok(None);
        }
        let (header, rest) = rest.split_at(header_size);
        let body = &rest[..body_size];
        let (header, body) = (header.to_vec(), Bytes::copy_from_slice(body));
        self.begin += PREFIX + header_size + body_size;
        let frame_end = self.count - (self.end - self.begin) as u64;
        let has_memory = self.memory.front().is_some_and(|(count, _)| *count <= frame_end);
        let memory = if has_memory { self.memory.pop_front().map(|(_, memory)| memory) } else { None };
        Ok(Some((header, body, memory)))
    }

    /// Receives bytes, and the memory file that comes with them.
    fn receive(&mut self, socket: &UnixStream, flags: RecvFlags) -> rustix::io::Result<usize> {
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.buffer[self.end..])];
        let bytes = recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?.bytes;
        (self.end, self.count) = (self.end + bytes, self.count + bytes as u64);
        for control in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = control {
                // The kernel ends what one call receives where a message with a descriptor ends.
                self.memory.extend(descriptors.map(|descriptor| (self.count, descriptor)));
            }
        }
        Ok(bytes)
    }
}

impl Default for Received {
    fn default() -> Self {
        let (buffer, memory) = (vec![0; BUFFER_BYTES], VecDeque::new());
        Received { buffer, begin: 0, end: 0, count: 0, memory, limit: FRAME_LIMIT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    fn pair() -> (Link, Link) {
        let (one, other) = UnixStream::pair().unwrap();
        (Link::new(one).unwrap(), Link::new(other).unwrap())
    }

    #[test]
    fn tensors_of_any_size_come_as_they_were() {
        let (one, other) = pair();
        for elements in [0, 3, 16 << 10, (16 << 10) + 1] {
            let tensors =
                ["a", "b"].map(|name| Tensor::from_values(name, [elements], (0..elements as i32).collect()).unwrap());
            let mut layout = Layout::default();
            let headers: Vec<_> = tensors.iter().map(|tensor| layout.add(tensor)).collect();
            one.send(&headers, &layout).unwrap();
            let frame = other.receive(SOON).unwrap().unwrap();
            let headers: Vec<TensorHeader<'_>> = serde_json::from_slice(&frame.header).unwrap();
            let received: Vec<_> = headers.iter().map(|header| frame.tensor(header).unwrap()).collect();
            assert_eq!(received, tensors);
        }
        assert!(other.receive(Duration::ZERO).unwrap().is_none(), "nothing is left over");
        drop(one);
        assert!(matches!(other.receive(SOON), Err(LinkError::Closed)));
    }

    #[test]
    fn a_released_memory_file_is_used_again() {
        let (one, other) = pair();
        let file_of = |value: i32, elements: usize, released: bool| {
            let tensor = Tensor::from_values("a", [elements as i64], vec![value; elements]).unwrap();
            let mut layout = Layout::default();
            let header = layout.add(&tensor);
            one.execute(&header, &layout).unwrap();
            let frame = other.receive(SOON).unwrap().unwrap();
            let header: TensorHeader<'_> = serde_json::from_slice(&frame.header).unwrap();
            assert_eq!(frame.tensor(&header).unwrap(), tensor);
            let lent = one.memory.lock().lent.as_ref().map(Mapped::identity);
            one.executed(released);
            lent
        };
        let large = INLINE_BYTES as usize;
        let first = file_of(1, large, true);
        assert!(first.is_some());
        assert_eq!(file_of(2, 1, false), None, "a small tensor needs none");
        assert_eq!(file_of(3, large / 2, false), first, "a smaller tensor lies in the same file");
        assert_ne!(file_of(4, large, true), first, "the child still uses the first file");
        assert_eq!(file_of(5, SPARE_BYTES as usize / 4 + 1, true), None, "a large file is not kept");
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let (one, other) = pair();
        (&one.socket).write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(matches!(other.receive(SOON), Err(LinkError::Garbage(_))));
        let frame = Frame { header: Vec::new(), data: Bytes::from_static(&[0; 8]) };
        let beyond = |offset, size| TensorHeader {
            name: "x".into(),
            datatype: trireme_inference::DataType::Int8,
            shape: vec![1].into(),
            offset,
            size,
        };
        assert!(frame.tensor(&beyond(8, 1)).is_err() && frame.tensor(&beyond(u64::MAX, 2)).is_err());
        assert!(frame.tensor(&beyond(7, 1)).is_ok());
    }
}
