//! V2 adds of many ledgers in one buffer: decodes them to rows with journal records, stores them, encodes responses.

use std::collections::HashMap;

use crate::buffers::{new_bytes, Buffer};
use crate::{be_i32, be_i64, put, put_reply, ADD_FIXED_BYTES, ADD_HEAD_BYTES, ENTRIES_KIND, ENTRY_HEADER_BYTES, LENGTH_BYTES};
use crate::{PLACE_SIZE_BITS, PREFIX_BYTES, REPLY_BYTES, RUN_HEAD_BYTES, VIEW_BYTES_MIN};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

const KEY_BYTES: usize = 20;

struct Row {
    /// Position of the first frame.
    at: usize,
    first: i64,
    next: Option<i64>,
    lac: i64,
    count: usize,
    size_bytes: usize,
}

type Taken<'py> = (usize, Bound<'py, PyList>, Py<PyAny>, usize, usize);

/// Decode the small adds from `position` on, by ledger, with their journal records; see `plain.take_add_rows`.
#[pyfunction]
pub fn take_add_rows<'py>(data: &Bound<'py, PyAny>, position: usize, frame_bytes_max: i64) -> PyResult<Taken<'py>> {
    let py = data.py();
    let buffer = Buffer::read(data)?;
    let bytes = buffer.bytes();
    let mut rows: Vec<Row> = Vec::new();
    let mut frames: Vec<(usize, usize, usize)> = Vec::new(); // row, start and end of the body
    let mut open: HashMap<&[u8], usize> = HashMap::new();
    let start = position;
    let mut position = position;
    while bytes.len() >= ADD_HEAD_BYTES && position <= bytes.len() - ADD_HEAD_BYTES {
        let length = be_i32(bytes, position) as i64;
        if bytes[position + LENGTH_BYTES..position + LENGTH_BYTES + 4] != bytes[start + LENGTH_BYTES..start + LENGTH_BYTES + 4]
            || length < ADD_FIXED_BYTES as i64 + ENTRY_HEADER_BYTES
            || length > frame_bytes_max
            || length - ADD_FIXED_BYTES as i64 >= VIEW_BYTES_MIN as i64
        {
            break;
        }
        let stop = position + LENGTH_BYTES + length as usize;
        if stop > bytes.len() {
            break;
        }
        let prefix = &bytes[position + LENGTH_BYTES..position + LENGTH_BYTES + PREFIX_BYTES];
        let (entry, lac) = (be_i64(bytes, position + 36), be_i64(bytes, position + 44));
        let body = position + LENGTH_BYTES + ADD_FIXED_BYTES;
        let last = frames.last().map(|frame| frame.0);
        // With one ledger, the previous row nearly always matches; with many ledgers, it nearly never does.
        let known = match last {
            Some(row) if bytes[rows[row].at + LENGTH_BYTES..rows[row].at + LENGTH_BYTES + PREFIX_BYTES] == *prefix => Some(row),
            Some(_) => open.get(prefix).copied(),
            None => None,
        };
        let row = match known {
            Some(row) if rows[row].next == Some(entry) => row,
            _ => {
                rows.push(Row { at: position, first: entry, next: None, lac: i64::MIN, count: 0, size_bytes: 0 });
                open.insert(prefix, rows.len() - 1);
                rows.len() - 1
            }
        };
        let each = &mut rows[row];
        each.next = entry.checked_add(1);
        each.lac = each.lac.max(lac);
        each.count += 1;
        each.size_bytes += stop - body;
        frames.push((row, body, stop));
        position = stop;
    }
    let size_bytes: usize = rows.iter().map(|row| row.size_bytes).sum();
    let list = PyList::empty(py);
    let mut places: Vec<(usize, usize)> = Vec::with_capacity(rows.len()); // where to write its next length and body
    let mut at = 0usize;
    let mut key: Option<Bound<'py, PyBytes>> = None;
    for row in &rows {
        let end = at + RUN_HEAD_BYTES + 4 * row.count + row.size_bytes;
        let row_key = &bytes[row.at + 8..row.at + 8 + KEY_BYTES];
        if key.as_ref().map(|known| known.as_bytes() == row_key) != Some(true) {
            key = Some(PyBytes::new(py, row_key));
        }
        let ledger = be_i64(bytes, row.at + 28);
        list.append((ledger, row.first, row.count, row.lac, key.as_ref().unwrap(), at, end))?;
        places.push((at + RUN_HEAD_BYTES, at + RUN_HEAD_BYTES + 4 * row.count));
        at = end;
    }
    let records = new_bytes(py, at, |out| {
        let mut at = 0usize;
        for row in &rows {
            out[at] = ENTRIES_KIND;
            out[at + 1..at + 4].fill(0);
            out[at + 4..at + 8].copy_from_slice(&(row.count as u32).to_le_bytes());
            out[at + 8..at + 16].copy_from_slice(&be_i64(bytes, row.at + 28).to_le_bytes());
            out[at + 16..at + 24].copy_from_slice(&row.first.to_le_bytes());
            out[at + 24..at + 32].copy_from_slice(&row.lac.to_le_bytes());
            at += RUN_HEAD_BYTES + 4 * row.count + row.size_bytes;
        }
        for (row, start, stop) in &frames {
            let (length_at, body_at) = places[*row];
            out[length_at..length_at + 4].copy_from_slice(&((stop - start) as u32).to_le_bytes());
            places[*row] = (length_at + 4, put(out, body_at, &bytes[*start..*stop])?);
        }
        Ok(())
    })?;
    Ok((position, list, records, frames.len(), size_bytes))
}

fn number<'py, T: FromPyObject<'py>>(row: &Bound<'py, PyTuple>, index: usize) -> PyResult<T> {
    row.get_item(index)?.extract()
}

/// Copy the entries of some rows into a chunk; see `plain.store_rows`.
#[pyfunction]
pub fn store_rows(
    chunk: &Bound<'_, PyAny>,
    offset: usize,
    start: i64,
    pieces: &Bound<'_, PyList>,
    count: usize,
) -> PyResult<Py<PyAny>> {
    let py = chunk.py();
    let mut target = Buffer::write(chunk)?;
    let out = target.bytes_mut();
    let size = count.checked_mul(8).ok_or_else(|| PyValueError::new_err("too many entries"))?;
    new_bytes(py, size, |places| {
        let mut slots = places.chunks_exact_mut(8);
        let (mut offset, mut start) = (offset, start);
        for piece in pieces.iter() {
            let piece = piece.downcast_into::<PyTuple>()?;
            let records = piece.get_item(0)?;
            let source = Buffer::read(&records)?;
            let rows = piece.get_item(1)?.downcast_into::<PyList>()?;
            (offset, start) = store_piece(out, offset, start, source.bytes(), &rows, &mut slots)?;
        }
        if slots.next().is_some() {
            return Err(PyValueError::new_err("the rows do not have `count` entries"));
        }
        Ok(())
    })
}

fn store_piece(
    out: &mut [u8],
    offset: usize,
    start: i64,
    records: &[u8],
    rows: &Bound<'_, PyList>,
    slots: &mut std::slice::ChunksExactMut<'_, u8>,
) -> PyResult<(usize, i64)> {
    let (mut offset, mut start) = (offset, start);
    for row in rows.iter() {
        let row = row.downcast_into::<PyTuple>()?;
        let (entries, at): (usize, usize) = (number(&row, 2)?, number(&row, 5)?);
        let lengths = at.checked_add(RUN_HEAD_BYTES);
        let bodies = lengths.and_then(|from| entries.checked_mul(4).and_then(|more| from.checked_add(more)));
        let mut from = bodies.filter(|from| *from <= records.len()).ok_or_else(outside)?;
        for index in 0..entries {
            let length_at = at + RUN_HEAD_BYTES + 4 * index;
            let length = u32::from_le_bytes(records[length_at..length_at + 4].try_into().unwrap()) as usize;
            let to = from.checked_add(length).filter(|to| *to <= records.len()).ok_or_else(outside)?;
            let end = offset.checked_add(length).filter(|end| *end <= out.len());
            let end = end.ok_or_else(|| PyIndexError::new_err("the entries do not fit the chunk"))?;
            let slot = slots.next().ok_or_else(|| PyValueError::new_err("the rows do not have `count` entries"))?;
            out[offset..end].copy_from_slice(&records[from..to]);
            slot.copy_from_slice(&(start << PLACE_SIZE_BITS | length as i64).to_ne_bytes());
            (offset, from) = (end, to);
            start += length as i64;
        }
    }
    Ok((offset, start))
}

fn outside() -> PyErr {
    PyIndexError::new_err("a row outside its records")
}

/// Encode the responses to some rows; see `plain.row_replies`.
#[pyfunction]
pub fn row_replies(py: Python<'_>, length: i32, header: u32, code: i32, rows: &Bound<'_, PyList>) -> PyResult<Py<PyAny>> {
    let mut found: Vec<(i64, i64, usize)> = Vec::with_capacity(rows.len());
    let mut answers = 0usize;
    for row in rows.iter() {
        let row = row.downcast_into::<PyTuple>()?;
        let (ledger, first, count): (i64, i64, usize) = (number(&row, 0)?, number(&row, 1)?, number(&row, 2)?);
        if count > 1 && i64::try_from(count - 1).ok().and_then(|more| first.checked_add(more)).is_none() {
            return Err(PyValueError::new_err("answers beyond the highest id"));
        }
        answers = answers.checked_add(count).ok_or_else(|| PyValueError::new_err("too many answers"))?;
        found.push((ledger, first, count));
    }
    let size = answers.checked_mul(REPLY_BYTES).ok_or_else(|| PyValueError::new_err("too many answers"))?;
    new_bytes(py, size, |out| {
        let mut slots = out.chunks_exact_mut(REPLY_BYTES);
        for (ledger, first, count) in &found {
            for (index, answer) in slots.by_ref().take(*count).enumerate() {
                put_reply(answer, length as u32, header, code, *ledger, first + index as i64);
            }
        }
        Ok(())
    })
}
