//! What a client sends: the V2 adds of consecutive entries with their CRC32C digests, in one buffer.

use crate::buffers::{new_bytes, Buffer};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

const HEADER_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;

/// The buffers of one payload: the object itself, or the parts in a tuple. Objects are held beside their views.
fn add_parts<'py>(payload: Bound<'py, PyAny>, parts: &mut Vec<(Buffer, Bound<'py, PyAny>)>) -> PyResult<usize> {
    let mut size = 0usize;
    if let Ok(tuple) = payload.downcast::<PyTuple>() {
        for part in tuple.iter() {
            let view = Buffer::read(&part)?;
            size += view.bytes().len();
            parts.push((view, part));
        }
    } else {
        let view = Buffer::read(&payload)?;
        size += view.bytes().len();
        parts.push((view, payload));
    }
    Ok(size)
}

/// The frames of some entries, and the ledger's length behind them; see `plain_adds.encode_adds`.
#[pyfunction]
pub fn encode_adds(
    prefix: &[u8],
    ledger: i64,
    first: i64,
    lac: i64,
    length: i64,
    size_max: usize,
    payloads: &Bound<'_, PyAny>,
) -> PyResult<(Py<PyAny>, i64)> {
    let py = payloads.py();
    let mut parts: Vec<(Buffer, Bound<'_, PyAny>)> = Vec::new();
    let mut entries: Vec<(usize, usize)> = Vec::new(); // the payload's size, and the end of its parts
    let fixed = prefix.len() + HEADER_BYTES + CHECKSUM_BYTES;
    let mut total = 0usize;
    {
        let mut add = |payload| -> PyResult<()> {
            let size = add_parts(payload, &mut parts)?;
            if size > size_max {
                return Err(PyOverflowError::new_err(size));
            }
            if fixed + size > i32::MAX as usize {
                return Err(PyValueError::new_err("a frame beyond the protocol's lengths"));
            }
            entries.push((size, parts.len()));
            total += 4 + fixed + size;
            Ok(())
        };
        if let Ok(list) = payloads.downcast::<PyList>() {
            for payload in list.iter() {
                add(payload)?;
            }
        } else if let Ok(tuple) = payloads.downcast::<PyTuple>() {
            for payload in tuple.iter() {
                add(payload)?;
            }
        } else {
            return Err(PyTypeError::new_err("payloads come in a list or a tuple"));
        }
    }
    let mut length = length;
    let frames = new_bytes(py, total, |out| {
        let (mut at, mut entry, mut part) = (0usize, first, 0usize);
        for (index, (size, end)) in entries.iter().enumerate() {
            length = length.checked_add(*size as i64).ok_or_else(|| PyValueError::new_err("a ledger beyond all lengths"))?;
            if index > 0 {
                entry = entry.checked_add(1).ok_or_else(|| PyValueError::new_err("entries beyond the highest id"))?;
            }
            let frame = &mut out[at..at + 4 + fixed + size];
            frame[..4].copy_from_slice(&((fixed + size) as i32).to_be_bytes());
            let (head, body) = frame[4..].split_at_mut(fixed);
            head[..prefix.len()].copy_from_slice(prefix);
            let header = &mut head[prefix.len()..];
            for (place, number) in header.chunks_exact_mut(8).zip([ledger, entry, lac, length]) {
                place.copy_from_slice(&number.to_be_bytes());
            }
            let mut crc = crc32c::crc32c(&header[..HEADER_BYTES]);
            let mut to = 0usize;
            for (view, _) in &parts[part..*end] {
                let bytes = view.bytes();
                let place = &mut body[to..to + bytes.len()];
                place.copy_from_slice(bytes);
                crc = crc32c::crc32c_append(crc, place);
                to += bytes.len();
            }
            header[HEADER_BYTES..].copy_from_slice(&crc.to_be_bytes());
            part = *end;
            at += 4 + fixed + size;
        }
        Ok(())
    })?;
    Ok((frames, length))
}
