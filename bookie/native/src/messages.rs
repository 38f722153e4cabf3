//! Decodes stored Pulsar entries to columns of messages. See `plain_messages` for columns and supported entries.
//!
//! Supports only entries whose fields are all known, of their types and complete, with text in UTF-8. The caller
//! decodes all other entries itself.

use crate::adds::batch_edges;
use crate::buffers::{new_bytes, Buffer};
use crate::fields::{Fields, BYTES, VARINT};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

pub const CHECKSUM_MAGIC: [u8; 2] = [0x0e, 0x01];
const BROKER_MAGIC: [u8; 2] = [0x0e, 0x02];
const HEAD_BYTES: usize = 10;
const TIME_MS_MAX: u64 = 253_402_300_799_999;
const ROW_BYTES: usize = 64;
/// Largest size of the rows of one entry. A larger entry is left to the caller, which decodes it in parts.
const ENTRY_ROWS_BYTES_MAX: usize = 64 << 20;

/// The properties of a message, alone or in a batch.
#[derive(Default)]
pub struct Message<'a> {
    pub key: Option<&'a [u8]>,
    pub key_is_base64: bool,
    pub ordering_key: Option<&'a [u8]>,
    event_ms: u64,
    is_null: bool,
    properties: Vec<(&'a [u8], &'a [u8])>,
}

/// The metadata of an entry.
#[derive(Default)]
pub struct Metadata<'a> {
    pub message: Message<'a>,
    pub producer: &'a [u8],
    pub sequence_id: i64,
    publish_ms: u64,
    compression: u32,
    uncompressed_size: u64,
    pub batch: Option<u32>,
    pub is_delayed: bool,
    schema_version: &'a [u8],
}

fn pair(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut key, mut value) = (None, None);
    let mut fields = Fields::of(bytes);
    while !fields.is_done() {
        match fields.tag()? {
            (1, BYTES) => key = Some(fields.text()?),
            (2, BYTES) => value = Some(fields.text()?),
            _ => return None,
        }
    }
    Some((key?, value?))
}

fn metadata(bytes: &[u8]) -> Option<Metadata<'_>> {
    let mut found = Metadata::default();
    let (mut has_sequence, mut has_publish) = (false, false);
    let mut fields = Fields::of(bytes);
    while !fields.is_done() {
        match fields.tag()? {
            (1, BYTES) => found.producer = fields.text()?,
            (2, VARINT) => {
                found.sequence_id = fields.varint()? as i64;
                has_sequence = true;
            }
            (3, VARINT) => {
                found.publish_ms = fields.varint()?;
                has_publish = true;
            }
            (4, BYTES) => found.message.properties.push(pair(fields.string()?)?),
            (6, BYTES) => found.message.key = Some(fields.text()?),
            (8, VARINT) => found.compression = fields.small()?,
            (9, VARINT) => found.uncompressed_size = fields.varint().filter(|size| *size <= u64::from(u32::MAX))?,
            (11, VARINT) => found.batch = Some(fields.small()?),
            (12, VARINT) => found.message.event_ms = fields.varint()?,
            (16, BYTES) => found.schema_version = fields.string()?,
            (17, VARINT) => found.message.key_is_base64 = fields.varint()? != 0,
            (18, BYTES) => found.message.ordering_key = Some(fields.string()?),
            (25, VARINT) => found.message.is_null = fields.varint()? != 0,
            (19, VARINT) => {
                fields.varint()?;
                found.is_delayed = true;
            }
            // Replication clusters, transaction and highest sequence id have no columns.
            (5 | 7, BYTES) => {
                fields.text()?;
            }
            (22 | 23 | 24 | 30, VARINT) => {
                fields.varint()?;
            }
            _ => return None,
        }
    }
    let is_whole = !found.producer.is_empty() && has_sequence && has_publish && found.publish_ms <= TIME_MS_MAX;
    is_whole.then_some(found)
}

/// Decode the metadata of one message in a batch. Also returns payload size, whether it is compacted out, sequence id.
fn single(bytes: &[u8]) -> Option<(Message<'_>, usize, bool, Option<i64>)> {
    let mut message = Message::default();
    let (mut size, mut is_out, mut sequence_id) = (None, false, None);
    let mut fields = Fields::of(bytes);
    while !fields.is_done() {
        match fields.tag()? {
            (1, BYTES) => message.properties.push(pair(fields.string()?)?),
            (2, BYTES) => message.key = Some(fields.text()?),
            (3, VARINT) => size = Some(fields.small()? as usize),
            (4, VARINT) => is_out = fields.varint()? != 0,
            (5, VARINT) => message.event_ms = fields.varint()?,
            (6, VARINT) => message.key_is_base64 = fields.varint()? != 0,
            (7, BYTES) => message.ordering_key = Some(fields.string()?),
            (8, VARINT) => sequence_id = Some(fields.varint()? as i64),
            (9, VARINT) => message.is_null = fields.varint()? != 0,
            (10, VARINT) => {
                fields.varint()?;
            }
            _ => return None,
        }
    }
    Some((message, size?, is_out, sequence_id))
}

/// Decode the metadata of an entry. Also returns its message part, from the checksum on, and the size of its head.
pub fn peeked(entry: &[u8]) -> Option<(Metadata<'_>, &[u8], usize)> {
    let mut at = 0usize;
    if entry.len() >= 6 && entry[..2] == BROKER_MAGIC {
        at = 6 + u32::from_be_bytes(entry[2..6].try_into().unwrap()) as usize;
    }
    let body = entry.get(at..).filter(|body| body.len() >= HEAD_BYTES && body[..2] == CHECKSUM_MAGIC)?;
    let size = u32::from_be_bytes(body[6..10].try_into().unwrap()) as usize;
    let end = HEAD_BYTES.checked_add(size).filter(|end| *end <= body.len())?;
    Some((metadata(&body[HEAD_BYTES..end])?, body, end))
}

/// Decode the metadata of an entry with a valid checksum, and return where its payload begins.
pub fn opened(entry: &[u8]) -> Option<(Metadata<'_>, usize)> {
    let (found, body, end) = peeked(entry)?;
    let checksum = u32::from_be_bytes(body[2..6].try_into().unwrap());
    (crc32c::crc32c(&body[6..]) == checksum).then_some((found, entry.len() - body.len() + end))
}

/// A column of int32 or int64, as bytes.
#[derive(Default)]
struct Numbers(Vec<u8>);

impl Numbers {
    fn long(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_ne_bytes());
    }

    fn int(&mut self, number: i32) {
        self.0.extend_from_slice(&number.to_ne_bytes());
    }
}

/// Offsets of Arrow's strings and lists, which begin with 0.
struct Offsets(Numbers);

impl Default for Offsets {
    fn default() -> Offsets {
        let mut first = Numbers::default();
        first.int(0);
        Offsets(first)
    }
}

/// Strings without nulls.
#[derive(Default)]
struct Strings {
    offsets: Offsets,
    data: Vec<u8>,
}

impl Strings {
    fn push(&mut self, value: &[u8]) -> Option<()> {
        self.data.extend_from_slice(value);
        self.offsets.0.int(i32::try_from(self.data.len()).ok()?);
        Some(())
    }

    fn cut(&mut self, count: usize, size: usize) {
        self.offsets.0 .0.truncate(4 * (count + 1));
        self.data.truncate(size);
    }
}

/// Tracks which rows have a value.
#[derive(Default)]
struct Validity {
    rows: Vec<bool>,
    set: usize,
}

impl Validity {
    fn push(&mut self, is_set: bool) {
        self.rows.push(is_set);
        self.set += usize::from(is_set);
    }

    fn cut(&mut self, count: usize) {
        self.set -= self.rows[count..].iter().filter(|is_set| **is_set).count();
        self.rows.truncate(count);
    }

    /// Return Arrow's bitmap; None if no row is null.
    fn bitmap<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        if self.set == self.rows.len() {
            return None;
        }
        let mut bits = vec![0u8; self.rows.len().div_ceil(8)];
        for (row, _) in self.rows.iter().enumerate().filter(|(_, is_set)| **is_set) {
            bits[row / 8] |= 1 << (row % 8);
        }
        Some(PyBytes::new(py, &bits))
    }
}

/// Strings with nulls.
#[derive(Default)]
struct Optionals {
    valid: Validity,
    values: Strings,
}

impl Optionals {
    fn push(&mut self, value: Option<&[u8]>) -> Option<()> {
        self.valid.push(value.is_some());
        self.values.push(value.unwrap_or(&[]))
    }

    fn cut(&mut self, count: usize, size: usize) {
        self.valid.cut(count);
        self.values.cut(count, size);
    }

    fn put(&self, columns: &Bound<'_, PyDict>, name: &str) -> PyResult<()> {
        if self.valid.set == 0 {
            return Ok(());
        }
        let py = columns.py();
        let offsets = PyBytes::new(py, &self.values.offsets.0 .0);
        columns.set_item(name, (self.valid.bitmap(py), offsets, PyBytes::new(py, &self.values.data)))
    }
}

/// Location of a payload: number of its bytes (0: the argument, from 1 on: decompressed entries), offset, size.
type Place = (usize, usize, usize);

/// How much of each column belongs to whole entries.
#[derive(Clone, Copy)]
struct Mark {
    rows: usize,
    pairs: usize,
    bases: usize,
    bytes: [usize; 6],
    size: usize,
}

#[derive(Default)]
struct Columns {
    rows: usize,
    source: Numbers,
    batch_index: Numbers,
    publish_ms: Numbers,
    sequence_id: Numbers,
    sizes: Numbers,
    event_ms: Numbers,
    has_event: Validity,
    producer: Strings,
    key: Optionals,
    ordering_key: Optionals,
    schema_version: Optionals,
    property_offsets: Offsets,
    property_keys: Strings,
    property_values: Strings,
    pairs: usize,
    has_payload: Validity,
    payloads: Vec<Place>,
    bases: Vec<usize>,
    /// Approximate bytes of the rows.
    size: usize,
}

impl Columns {
    fn mark(&self) -> Mark {
        let bytes = [
            self.producer.data.len(),
            self.key.values.data.len(),
            self.ordering_key.values.data.len(),
            self.schema_version.values.data.len(),
            self.property_keys.data.len(),
            self.property_values.data.len(),
        ];
        Mark { rows: self.rows, pairs: self.pairs, bases: self.bases.len(), bytes, size: self.size }
    }

    /// Remove everything added after a mark.
    fn cut(&mut self, mark: Mark) {
        let (rows, bytes) = (mark.rows, mark.bytes);
        for column in [&mut self.source, &mut self.publish_ms, &mut self.sequence_id, &mut self.event_ms] {
            column.0.truncate(8 * rows);
        }
        for column in [&mut self.batch_index, &mut self.sizes] {
            column.0.truncate(4 * rows);
        }
        self.producer.cut(rows, bytes[0]);
        self.key.cut(rows, bytes[1]);
        self.ordering_key.cut(rows, bytes[2]);
        self.schema_version.cut(rows, bytes[3]);
        self.property_offsets.0 .0.truncate(4 * (rows + 1));
        self.property_keys.cut(mark.pairs, bytes[4]);
        self.property_values.cut(mark.pairs, bytes[5]);
        self.has_event.cut(rows);
        self.has_payload.cut(rows);
        self.payloads.truncate(rows);
        self.bases.truncate(mark.bases);
        (self.rows, self.pairs, self.size) = (rows, mark.pairs, mark.size);
    }

    fn add(
        &mut self,
        number: usize,
        index: i32,
        of: &Metadata<'_>,
        message: &Message<'_>,
        sequence_id: i64,
        place: Place,
    ) -> Option<()> {
        self.source.long(number as i64);
        self.batch_index.int(index);
        self.publish_ms.long(of.publish_ms as i64);
        self.sequence_id.long(sequence_id);
        self.sizes.int(i32::try_from(place.2).ok()?);
        let has_event = 0 < message.event_ms && message.event_ms <= TIME_MS_MAX;
        self.event_ms.long(if has_event { message.event_ms as i64 } else { 0 });
        self.has_event.push(has_event);
        self.producer.push(of.producer)?;
        self.key.push(message.key)?;
        if message.key.is_some() && message.key_is_base64 {
            self.bases.push(self.rows);
        }
        self.ordering_key.push(message.ordering_key)?;
        self.schema_version.push(Some(of.schema_version).filter(|version| !version.is_empty()))?;
        for (key, value) in &message.properties {
            self.property_keys.push(key)?;
            self.property_values.push(value)?;
            self.size += ROW_BYTES + key.len() + value.len();
        }
        self.pairs += message.properties.len();
        self.property_offsets.0.int(i32::try_from(self.pairs).ok()?);
        self.has_payload.push(!message.is_null);
        self.payloads.push(place);
        self.size += ROW_BYTES + of.producer.len() + of.schema_version.len();
        self.size += message.key.map_or(0, <[u8]>::len) + message.ordering_key.map_or(0, <[u8]>::len);
        self.rows += 1;
        Some(())
    }

    /// Add the messages of a batch, which begins at `start` of `body` with the number `at`.
    fn add_batch(&mut self, number: usize, of: &Metadata<'_>, count: u32, body: &[u8], at: usize, start: usize) -> Option<()> {
        let (mut position, began) = (start, self.size);
        for index in 0..count {
            if self.size - began > ENTRY_ROWS_BYTES_MAX {
                return None;
            }
            let head_at = position.checked_add(4).filter(|head_at| *head_at <= body.len())?;
            let size = u32::from_be_bytes(body[position..head_at].try_into().unwrap()) as usize;
            let payload_at = head_at.checked_add(size).filter(|end| *end <= body.len())?;
            let (message, size, is_out, own_id) = single(&body[head_at..payload_at])?;
            position = payload_at.checked_add(size).filter(|end| *end <= body.len())?;
            if !is_out {
                let sequence_id = own_id.unwrap_or(of.sequence_id.wrapping_add(i64::from(index)));
                self.add(number, index as i32, of, &message, sequence_id, (at, payload_at, size))?;
            }
        }
        Some(())
    }

    fn into_dict<'py>(self, py: Python<'py>, bodies: &[&[u8]], wants_payload: bool) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        let none = py.None();
        for (name, column) in [
            ("source", &self.source),
            ("batch_index", &self.batch_index),
            ("publish_time", &self.publish_ms),
            ("sequence_id", &self.sequence_id),
            ("size", &self.sizes),
        ] {
            columns.set_item(name, (&none, PyBytes::new(py, &column.0)))?;
        }
        if self.has_event.set > 0 {
            columns.set_item("event_time", (self.has_event.bitmap(py), PyBytes::new(py, &self.event_ms.0)))?;
        }
        let producer = &self.producer;
        let offsets = PyBytes::new(py, &producer.offsets.0 .0);
        columns.set_item("producer", (&none, offsets, PyBytes::new(py, &producer.data)))?;
        self.key.put(&columns, "key")?;
        self.ordering_key.put(&columns, "ordering_key")?;
        self.schema_version.put(&columns, "schema_version")?;
        if self.pairs > 0 {
            let parts = [
                &self.property_offsets.0 .0,
                &self.property_keys.offsets.0 .0,
                &self.property_keys.data,
                &self.property_values.offsets.0 .0,
                &self.property_values.data,
            ];
            columns.set_item("properties", PyTuple::new(py, parts.map(|part| PyBytes::new(py, part)))?)?;
        }
        if wants_payload {
            let (offsets, data) = joined(py, self.payloads.iter().map(|(body, at, size)| &bodies[*body][*at..*at + *size]))?;
            columns.set_item("payload", (self.has_payload.bitmap(py), offsets, data))?;
        }
        Ok(columns)
    }
}

/// Return offsets as int32, and the concatenated bytes.
fn joined<'a>(py: Python<'_>, parts: impl Iterator<Item = &'a [u8]> + Clone) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let (mut count, mut size) = (0usize, 0usize);
    for part in parts.clone() {
        count += 1;
        size += part.len();
    }
    if size > i32::MAX as usize {
        return Err(PyValueError::new_err("the bytes exceed offsets of 32 bits"));
    }
    let data = new_bytes(py, size, |out| {
        let mut at = 0usize;
        for part in parts.clone() {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    })?;
    let offsets = new_bytes(py, 4 * (count + 1), |out| {
        let mut at = 0i32;
        out[..4].copy_from_slice(&at.to_ne_bytes());
        for (part, place) in parts.clone().zip(out[4..].chunks_exact_mut(4)) {
            at += part.len() as i32;
            place.copy_from_slice(&at.to_ne_bytes());
        }
        Ok(())
    })?;
    Ok((offsets, data))
}

/// Return the payloads of stored entries; see `plain_messages.join_payloads`.
#[pyfunction]
pub fn join_payloads(py: Python<'_>, entries: &Bound<'_, PyAny>, skip: usize) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let mut found: Vec<(Buffer, Bound<'_, PyAny>)> = Vec::new();
    for entry in entries.try_iter()? {
        let entry = entry?;
        let view = Buffer::read(&entry)?;
        if view.bytes().len() < skip {
            return Err(PyIndexError::new_err("an entry that is shorter than its head"));
        }
        found.push((view, entry));
    }
    joined(py, found.iter().map(|(view, _)| &view.bytes()[skip..]))
}

/// Return the payloads of a batch; see `plain_messages.join_batch`.
#[pyfunction]
pub fn join_batch(py: Python<'_>, body: &Bound<'_, PyAny>, skip: usize) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let buffer = Buffer::read(body)?;
    let bytes = buffer.bytes();
    let edges = batch_edges(bytes)?;
    if edges.iter().any(|(start, end)| end - start < skip) {
        return Err(PyIndexError::new_err("an entry that is shorter than its head"));
    }
    joined(py, edges.iter().map(|(start, end)| &bytes[start + skip..*end]))
}

/// Decode the messages of the entries from `first` on; see `plain_messages.message_columns`.
#[pyfunction]
pub fn message_columns<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    offsets: &Bound<'py, PyAny>,
    first: usize,
    bytes_max: usize,
    wants_payload: bool,
    inflate: &Bound<'py, PyAny>,
) -> PyResult<(usize, usize, usize, Bound<'py, PyDict>, Vec<usize>)> {
    let (data, offsets) = (Buffer::read(data)?, Buffer::read(offsets)?);
    let (bytes, edges) = (data.bytes(), offsets.bytes());
    let edge = |index: usize| i32::from_ne_bytes(edges[4 * index..4 * index + 4].try_into().unwrap());
    let count = (edges.len() / 4).saturating_sub(1);
    let mut columns = Columns::default();
    let mut inflated: Vec<Bound<'py, PyBytes>> = Vec::new();
    let mut number = first;
    while number < count && columns.size < bytes_max {
        let (start, end) = (edge(number), edge(number + 1));
        if start < 0 || end < start || end as usize > bytes.len() {
            return Err(PyIndexError::new_err("an entry outside the bytes"));
        }
        let (start, end) = (start as usize, end as usize);
        let Some((of, payload_at)) = opened(&bytes[start..end]) else { break };
        let mark = columns.mark();
        let (mut body, mut at, mut from) = (&bytes[..end], 0usize, start + payload_at);
        if of.compression > 0 {
            let packed = PyBytes::new(py, &body[from..]);
            let plain = inflate.call1((packed, of.compression, of.uncompressed_size))?;
            let Ok(plain) = plain.downcast_into::<PyBytes>() else { break };
            inflated.push(plain);
            (body, at, from) = (inflated[inflated.len() - 1].as_bytes(), inflated.len(), 0);
        }
        let taken = match of.batch {
            Some(count) => columns.add_batch(number, &of, count, body, at, from),
            None => columns.add(number, -1, &of, &of.message, of.sequence_id, (at, from, body.len() - from)),
        };
        if taken.is_none() {
            columns.cut(mark);
            break;
        }
        columns.size += body.len() - from;
        number += 1;
    }
    let mut bodies = vec![bytes];
    bodies.extend(inflated.iter().map(|plain| plain.as_bytes()));
    let (rows, size) = (columns.rows, columns.size);
    let bases = std::mem::take(&mut columns.bases);
    Ok((number, rows, size, columns.into_dict(py, &bodies, wants_payload)?, bases))
}
