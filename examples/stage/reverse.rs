//! A program for backend `process`: answers each request with the elements of its input `IN` in reverse order, as `OUT`.
//! It speaks docs/stage-protocol.md with the worker, on standard input.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage};
use rustix::net::{SendFlags, recvmsg, sendmsg};
use serde_json::{Value, json};

/// Above so many bytes tensors travel in a memory file.
const INLINE: usize = 64 << 10;

fn main() -> Result<()> {
    let mut worker = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    while let Some((header, data)) = receive(&mut worker)? {
        match header["type"].as_str() {
            Some("load") => send(&mut worker, &json!({"type": "loaded"}), &[])?,
            Some("execute") => {
                let (mut responses, mut body) = (Vec::new(), Vec::new());
                for request in header["requests"].as_array().into_iter().flatten() {
                    responses.push(respond(request, &data, &mut body));
                }
                send(&mut worker, &json!({"type": "responses", "responses": responses, "executed": true}), &body)?;
            }
            Some("finalize") => return send(&mut worker, &json!({"type": "finalized"}), &[]),
            // Cancellations: it answers too soon for them.
            _ => {}
        }
    }
    Ok(())
}

/// The response to a request; the bytes of its output go into `body`.
fn respond(request: &Value, data: &[u8], body: &mut Vec<u8>) -> Value {
    let input = &request["inputs"][0];
    let number = |name: &str| input[name].as_u64().unwrap_or(0) as usize;
    let bytes = &data[number("offset")..number("offset") + number("size")];
    let width = match input["datatype"].as_str() {
        Some("INT8" | "UINT8" | "BOOL") => 1,
        Some("FP16" | "BF16" | "INT16" | "UINT16") => 2,
        Some("FP32" | "INT32" | "UINT32") => 4,
        Some("FP64" | "INT64" | "UINT64") => 8,
        other => {
            let message = format!("input 'IN' is {other:?}, expected elements of one size");
            return json!({"id": request["id"], "final": true, "error": {"code": "INVALID_ARG", "message": message}});
        }
    };
    body.resize(body.len().next_multiple_of(64), 0);
    let mut output = json!({"name": "OUT", "datatype": input["datatype"], "shape": input["shape"]});
    (output["offset"], output["size"]) = (body.len().into(), bytes.len().into());
    bytes.rchunks(width).for_each(|element| body.extend_from_slice(element));
    json!({"id": request["id"], "final": true, "outputs": [output]})
}

/// The next frame: its header and the bytes of its tensors. `None` if the worker has closed the socket.
fn receive(worker: &mut UnixStream) -> Result<Option<(Value, Vec<u8>)>> {
    let (mut prefix, mut memory) = ([0; 8], None::<OwnedFd>);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(&*worker, &mut [IoSliceMut::new(&mut prefix)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    if received == 0 {
        return Ok(None);
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            memory = descriptors.next();
        }
    }
    worker.read_exact(&mut prefix[received..])?;
    let size = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]) as usize;
    let (mut header, mut data) = (vec![0; size(0)], vec![0; size(4)]);
    worker.read_exact(&mut header)?;
    worker.read_exact(&mut data)?;
    if let Some(memory) = memory {
        File::from(memory).read_to_end(&mut data)?;
    }
    Ok(Some((serde_json::from_slice(&header)?, data)))
}

/// Sends a frame with the bytes of its tensors, in a memory file if they are many.
fn send(worker: &mut UnixStream, header: &Value, body: &[u8]) -> Result<()> {
    let (header, inline) = (header.to_string(), if body.len() > INLINE { &[][..] } else { body });
    let sizes = [(header.len() as u32).to_le_bytes(), (inline.len() as u32).to_le_bytes()].concat();
    let frame = [&sizes[..], header.as_bytes(), inline].concat();
    let mut memory = File::from(rustix::fs::memfd_create(c"reverse", rustix::fs::MemfdFlags::CLOEXEC)?);
    let (mut space, descriptors) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [memory.try_clone()?]);
    let descriptors = descriptors.each_ref().map(AsFd::as_fd);
    let mut control = SendAncillaryBuffer::new(&mut space);
    if inline.len() < body.len() {
        memory.write_all(body)?;
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let sent = sendmsg(&*worker, &[IoSlice::new(&frame)], &mut control, SendFlags::NOSIGNAL)?;
    worker.write_all(&frame[sent..])
}
