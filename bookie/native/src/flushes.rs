//! Encodes the entries of many ledgers for an entry log and the index; see `plain_flushes`.

use crate::buffers::{new_bytes, Buffer};
use crate::{put_record, CHUNK_BYTES, PLACE_KEPT, PLACE_SIZE_BITS, RECORD_HEAD_BYTES};
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

const BLOCK_SHIFT: u32 = 8;
const BITMAP_BYTES: usize = 32;
const BITMAP: u8 = 1;
const SHORT: u8 = 2;
const LONG: u8 = 4;
const SEGMENT_BYTES: usize = 12;
const BLOCK_HEAD_BYTES: usize = 6;
const BLOCK_VERSION: u8 = 1;
const KEY_BYTES: usize = 16;
const SPAN_BYTES: usize = 36;
const NO_ENTRY: i64 = -1;

fn number_at(bytes: &[u8], index: usize) -> i64 {
    i64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap())
}

type Taken<'py> = (usize, Bound<'py, PyList>, Bound<'py, PyList>);

/// Return the runs of the next ledgers, and the keys of their index blocks; see `plain_flushes.ledger_runs`.
#[pyfunction]
pub fn ledger_runs<'py>(
    held: &Bound<'py, PyDict>,
    ledgers: &Bound<'py, PyList>,
    at: usize,
    runs_max: usize,
) -> PyResult<Taken<'py>> {
    let py = held.py();
    let (runs, keys) = (PyList::empty(py), PyList::empty(py));
    let mut at = at;
    while at < ledgers.len() && runs.len() < runs_max {
        let ledger = ledgers.get_item(at)?;
        at += 1;
        let entries = match held.get_item(&ledger)? {
            Some(entries) => entries,
            None => continue,
        };
        if entries.getattr(pyo3::intern!(py, "info"))?.getattr(pyo3::intern!(py, "deleted"))?.is_truthy()? {
            continue;
        }
        let (ids, places) = if entries.getattr(pyo3::intern!(py, "strays"))?.is_truthy()? {
            entries.call_method0(pyo3::intern!(py, "in_order"))?.extract()?
        } else {
            (entries.getattr(pyo3::intern!(py, "ids"))?, entries.getattr(pyo3::intern!(py, "places"))?)
        };
        let mut key = [0u8; KEY_BYTES];
        key[0] = b'b';
        key[1..9].copy_from_slice(&ledger.extract::<i64>()?.to_be_bytes());
        let view = Buffer::read(&ids)?;
        let bytes = view.bytes();
        if bytes.is_empty() || bytes.len() % 8 != 0 {
            return Err(PyValueError::new_err("a ledger without entries"));
        }
        let count = bytes.len() / 8;
        let mut start = 0;
        while start < count {
            let block = number_at(bytes, start) >> BLOCK_SHIFT;
            // Ids ascend, so the search halves what remains.
            let (mut stop, mut end) = (start + 1, count);
            if number_at(bytes, count - 1) >> BLOCK_SHIFT == block {
                stop = count;
            }
            while stop < end {
                let middle = (stop + end) / 2;
                if number_at(bytes, middle) >> BLOCK_SHIFT <= block {
                    stop = middle + 1;
                } else {
                    end = middle;
                }
            }
            runs.append((&ledger, &ids, &places, start, stop))?;
            key[9..].copy_from_slice(&block.to_be_bytes()[1..]);
            keys.append(PyBytes::new(py, &key))?;
            start = stop;
        }
    }
    Ok((at, runs, keys))
}

/// Return the whole segments of some runs, their lines of a log's map, and their entries; see `plain_flushes.place_runs`.
#[pyfunction]
pub fn place_runs<'py>(
    runs: &Bound<'py, PyList>,
    segments: &Bound<'py, PyList>,
    log: u32,
    base: u32,
) -> PyResult<(Bound<'py, PyList>, Py<PyBytes>, usize)> {
    let py = runs.py();
    if runs.len() != segments.len() {
        return Err(PyValueError::new_err("not one segment for each run"));
    }
    let found = PyList::empty(py);
    let mut lines: Vec<u8> = Vec::with_capacity(runs.len() * SPAN_BYTES);
    let (mut base, mut entries) = (base as u64, 0usize);
    for (item, segment) in runs.iter().zip(segments.iter()) {
        let item = item.downcast_into::<PyTuple>()?;
        let run = Run::of(&item)?;
        let segment = segment.downcast_into::<PyTuple>()?;
        let size_bytes: u64 = segment.get_item(0)?.extract()?;
        let tail = segment.get_item(1)?.downcast_into::<PyBytes>()?;
        let tail = tail.as_bytes();
        let offset = u32::try_from(base).map_err(|_| PyOverflowError::new_err("an offset beyond a log"))?;
        found.append(new_bytes(py, 8 + tail.len(), |out| {
            out[..4].copy_from_slice(&log.to_le_bytes());
            out[4..8].copy_from_slice(&offset.to_le_bytes());
            out[8..].copy_from_slice(tail);
            Ok(())
        })?)?;
        base += size_bytes;
        entries += run.stop - run.start;
        Span {
            ledger: run.ledger,
            first: run.id(run.start),
            last: run.id(run.stop - 1),
            entries: (run.stop - run.start) as u64,
            size_bytes,
        }
        .put(&mut lines)?;
    }
    Ok((found, PyBytes::new(py, &lines).unbind(), entries))
}

struct Span {
    ledger: i64,
    first: i64,
    last: i64,
    entries: u64,
    size_bytes: u64,
}

impl Span {
    fn of(line: &[u8]) -> Span {
        let number = |at: usize| i64::from_le_bytes(line[at..at + 8].try_into().unwrap());
        Span {
            ledger: number(0),
            first: number(8),
            last: number(16),
            entries: u64::from(u32::from_le_bytes(line[24..28].try_into().unwrap())),
            size_bytes: u64::from_le_bytes(line[28..36].try_into().unwrap()),
        }
    }

    fn join(&mut self, other: &Span) -> PyResult<()> {
        if other.first != NO_ENTRY {
            self.first = if self.first == NO_ENTRY { other.first } else { self.first.min(other.first) };
            self.last = self.last.max(other.last);
        }
        self.entries += other.entries;
        let size_bytes = self.size_bytes.checked_add(other.size_bytes);
        self.size_bytes = size_bytes.ok_or_else(|| PyOverflowError::new_err("too many bytes of a ledger"))?;
        Ok(())
    }

    fn put(&self, out: &mut Vec<u8>) -> PyResult<()> {
        let entries = u32::try_from(self.entries).map_err(|_| PyOverflowError::new_err("too many entries of a ledger"))?;
        for number in [self.ledger, self.first, self.last] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&entries.to_le_bytes());
        out.extend_from_slice(&self.size_bytes.to_le_bytes());
        Ok(())
    }
}

/// Sort lines of a log's map by ledger and join those of one ledger; see `plain_flushes.join_spans`.
#[pyfunction]
pub fn join_spans(py: Python<'_>, parts: Vec<Bound<'_, PyBytes>>) -> PyResult<Py<PyBytes>> {
    let mut spans: Vec<Span> = Vec::with_capacity(parts.iter().map(|part| part.as_bytes().len()).sum::<usize>() / SPAN_BYTES);
    for part in &parts {
        let bytes = part.as_bytes();
        if bytes.len() % SPAN_BYTES != 0 {
            return Err(PyValueError::new_err("a line of a map ends early"));
        }
        spans.extend(bytes.chunks_exact(SPAN_BYTES).map(Span::of));
    }
    spans.sort_by_key(|span| span.ledger);
    let mut out: Vec<u8> = Vec::with_capacity(spans.len() * SPAN_BYTES);
    let mut spans = spans.into_iter();
    if let Some(mut held) = spans.next() {
        for span in spans {
            if span.ledger == held.ledger {
                held.join(&span)?;
            } else {
                held.put(&mut out)?;
                held = span;
            }
        }
        held.put(&mut out)?;
    }
    Ok(PyBytes::new(py, &out).unbind())
}

struct Run {
    ledger: i64,
    ids: Buffer,
    places: Buffer,
    start: usize,
    stop: usize,
}

impl Run {
    /// Create a run. The tuple must live as long as the run, because it owns the arrays.
    fn of(item: &Bound<'_, PyTuple>) -> PyResult<Run> {
        let run = Run {
            ledger: item.get_item(0)?.extract()?,
            ids: Buffer::read(&item.get_item(1)?)?,
            places: Buffer::read(&item.get_item(2)?)?,
            start: item.get_item(3)?.extract()?,
            stop: item.get_item(4)?.extract()?,
        };
        let (ids, places) = (run.ids.bytes().len(), run.places.bytes().len());
        if ids != places || ids % 8 != 0 || run.start >= run.stop || run.stop > ids / 8 {
            return Err(PyValueError::new_err("not a run of one block"));
        }
        Ok(run)
    }

    fn id(&self, index: usize) -> i64 {
        number_at(self.ids.bytes(), index)
    }

    fn place(&self, index: usize) -> i64 {
        number_at(self.places.bytes(), index)
    }
}

/// Return record bytes and the segment of each run that fits; see `plain_flushes.run_segments`.
#[pyfunction]
pub fn run_segments<'py>(runs: &Bound<'py, PyList>, kept: &Bound<'py, PyList>, bytes_max: i64) -> PyResult<Bound<'py, PyList>> {
    let py = runs.py();
    let found = PyList::empty(py);
    let mut left = bytes_max;
    let mut sizes: Vec<u32> = Vec::new();
    for item in runs.iter() {
        let item = item.downcast_into::<PyTuple>()?;
        let run = Run::of(&item)?;
        if run.id(run.start) >> BLOCK_SHIFT != run.id(run.stop - 1) >> BLOCK_SHIFT || run.stop - run.start > 256 {
            return Err(PyValueError::new_err("not a run of one block"));
        }
        sizes.clear();
        let mut size_bytes = 0i64;
        for index in run.start..run.stop {
            let place = run.place(index);
            let size = if place & PLACE_KEPT != 0 {
                kept.get_item((place ^ PLACE_KEPT) as usize)?.len()? as i64
            } else {
                place & ((1 << PLACE_SIZE_BITS) - 1)
            };
            size_bytes += size + RECORD_HEAD_BYTES as i64;
            sizes.push(u32::try_from(size).map_err(|_| PyValueError::new_err("an entry too large"))?);
        }
        left -= size_bytes;
        if left < 0 {
            break;
        }
        found.append((size_bytes, PyBytes::new(py, &tail(&run, &sizes))))?;
    }
    Ok(found)
}

fn tail(run: &Run, sizes: &[u32]) -> Vec<u8> {
    let count = sizes.len();
    let first = run.id(run.start);
    let stride = if count > 1 { run.id(run.start + 1) - first } else { 1 };
    let regular = (run.start + 1..run.stop).all(|index| run.id(index) - run.id(index - 1) == stride);
    let longest = *sizes.iter().max().unwrap();
    let even = sizes.iter().all(|size| *size == longest);
    let mut form = if regular { 0 } else { BITMAP };
    if !even {
        form |= if longest < 1 << 16 { SHORT } else { LONG };
    }
    let mut out = Vec::with_capacity(4 + BITMAP_BYTES + 4 * count);
    out.extend_from_slice(&[form, first as u8, stride as u8, (count - 1) as u8]);
    if !regular {
        let mut bitmap = [0u8; BITMAP_BYTES];
        for index in run.start..run.stop {
            let low = run.id(index) as u8;
            bitmap[(low >> 3) as usize] |= 1 << (low & 7);
        }
        out.extend_from_slice(&bitmap);
    }
    if even {
        out.extend_from_slice(&longest.to_le_bytes());
    } else if longest < 1 << 16 {
        sizes.iter().for_each(|size| out.extend_from_slice(&(*size as u16).to_le_bytes()));
    } else {
        sizes.iter().for_each(|size| out.extend_from_slice(&size.to_le_bytes()));
    }
    out
}

/// Write the records of several runs into the target; see `plain_flushes.encode_runs`.
#[pyfunction]
pub fn encode_runs(
    target: &Bound<'_, PyAny>,
    at: usize,
    salt: u32,
    runs: &Bound<'_, PyList>,
    chunks: &Bound<'_, PyList>,
    kept: &Bound<'_, PyList>,
) -> PyResult<usize> {
    let mut target = Buffer::write(target)?;
    let out = target.bytes_mut();
    let mut chunk: Option<(usize, Buffer)> = None;
    let mut at = at;
    for item in runs.iter() {
        let item = item.downcast_into::<PyTuple>()?;
        let run = Run::of(&item)?;
        for index in run.start..run.stop {
            let (id, place) = (run.id(index), run.place(index));
            if place & PLACE_KEPT != 0 {
                let entry = kept.get_item((place ^ PLACE_KEPT) as usize)?;
                let source = Buffer::read(&entry)?;
                at = put_record(out, at, salt, run.ledger, id, source.bytes())?;
                continue;
            }
            let (start, size) = ((place >> PLACE_SIZE_BITS) as usize, (place & ((1 << PLACE_SIZE_BITS) - 1)) as usize);
            let (number, offset) = (start / CHUNK_BYTES, start % CHUNK_BYTES);
            if chunk.as_ref().map(|held| held.0) != Some(number) {
                chunk = Some((number, Buffer::read(&chunks.get_item(number)?)?));
            }
            let held = chunk.as_ref().unwrap().1.bytes();
            if offset + size > held.len() {
                return Err(PyIndexError::new_err("a place outside its chunk"));
            }
            at = put_record(out, at, salt, run.ledger, id, &held[offset..offset + size])?;
        }
    }
    Ok(at)
}

/// Return new values of index blocks that can be merged here; see `plain_flushes.merge_blocks`.
#[pyfunction]
pub fn merge_blocks<'py>(
    keys: &Bound<'py, PyList>,
    olds: &Bound<'py, PyList>,
    fresh: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyList>> {
    let py = keys.py();
    if keys.len() != olds.len() || keys.len() != fresh.len() {
        return Err(PyValueError::new_err("not one value for each key"));
    }
    let found = PyList::empty(py);
    for index in 0..keys.len() {
        let (key, old, new) = (keys.get_item(index)?, olds.get_item(index)?, fresh.get_item(index)?);
        let (key, new) = (key.downcast::<PyBytes>()?.as_bytes(), new.downcast::<PyBytes>()?.as_bytes());
        let salt = crc32c::crc32c(key);
        let (mut body, mut flags): (&[u8], u8) = (&[], 0);
        if !old.is_none() {
            let value = old.downcast::<PyBytes>()?.as_bytes();
            if !may_be_joined(salt, value, new) {
                found.append(py.None())?;
                continue;
            }
            (body, flags) = (&value[BLOCK_HEAD_BYTES..], value[5] & 1);
        }
        found.append(new_bytes(py, BLOCK_HEAD_BYTES + body.len() + new.len(), |out| {
            out[4] = BLOCK_VERSION;
            out[5] = flags;
            out[BLOCK_HEAD_BYTES..BLOCK_HEAD_BYTES + body.len()].copy_from_slice(body);
            out[BLOCK_HEAD_BYTES + body.len()..].copy_from_slice(new);
            let crc = crc32c::crc32c_append(salt, &out[4..]);
            out[..4].copy_from_slice(&crc.to_le_bytes());
            Ok(())
        })?)?;
    }
    Ok(found)
}

fn may_be_joined(salt: u32, value: &[u8], new: &[u8]) -> bool {
    if value.len() < BLOCK_HEAD_BYTES || value[4] != BLOCK_VERSION {
        return false;
    }
    let stored = u32::from_le_bytes(value[..4].try_into().unwrap());
    if crc32c::crc32c_append(salt, &value[4..]) != stored {
        return false;
    }
    match (masks(&value[BLOCK_HEAD_BYTES..]), masks(new)) {
        (Some(held), Some(more)) => held.iter().zip(more.iter()).all(|(one, other)| one & other == 0),
        _ => false,
    }
}

/// Return the bit mask of the ids in some segments; None if the segments are invalid.
fn masks(segments: &[u8]) -> Option<[u8; BITMAP_BYTES]> {
    let mut taken = [0u8; BITMAP_BYTES];
    let mut at = 0usize;
    while at < segments.len() {
        let head = segments.get(at + 8..at + SEGMENT_BYTES)?;
        let (form, first, stride, last) = (head[0], head[1] as usize, head[2] as usize, head[3] as usize);
        at += SEGMENT_BYTES;
        if form & BITMAP != 0 {
            let bitmap = segments.get(at..at + BITMAP_BYTES)?;
            taken.iter_mut().zip(bitmap.iter()).for_each(|(one, other)| *one |= other);
            at += BITMAP_BYTES;
        } else {
            if stride == 0 || first + stride * last > 255 {
                return None;
            }
            for low in (first..=first + stride * last).step_by(stride) {
                taken[low >> 3] |= 1 << (low & 7);
            }
        }
        at += match form & (SHORT | LONG) {
            0 => 4,
            kind if kind & SHORT != 0 => 2 * (last + 1),
            _ => 4 * (last + 1),
        };
    }
    (at == segments.len()).then_some(taken)
}
