//! Views into Python's buffers, and bytes objects that are filled in place.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A contiguous view that is released on drop. Bytes objects need no view, because they never move.
pub enum Buffer {
    Plain(*const u8, usize),
    View(ffi::Py_buffer),
}

impl Buffer {
    /// Create a view for reading. The caller must keep `object` alive as long as the view.
    pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        if let Ok(bytes) = object.downcast::<PyBytes>() {
            let data = bytes.as_bytes();
            return Ok(Buffer::Plain(data.as_ptr(), data.len()));
        }
        Buffer::view(object, ffi::PyBUF_SIMPLE)
    }

    /// Create a view for writing.
    pub fn write(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::view(object, ffi::PyBUF_WRITABLE)
    }

    fn view(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Buffer> {
        let mut found = ffi::Py_buffer::new();
        // Creates a contiguous view of one dimension, or sets an exception.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut found, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        if found.len < 0 {
            unsafe { ffi::PyBuffer_Release(&mut found) };
            return Err(PyTypeError::new_err("a buffer of negative length"));
        }
        Ok(Buffer::View(found))
    }

    pub fn bytes(&self) -> &[u8] {
        let (start, size) = match self {
            Buffer::Plain(start, size) => (*start, *size),
            Buffer::View(view) => (view.buf as *const u8, view.len as usize),
        };
        if size == 0 {
            return &[];
        }
        unsafe { std::slice::from_raw_parts(start, size) }
    }

    /// The bytes for writing. Only for a view created by `write`.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::View(view) if view.len > 0 => unsafe {
                std::slice::from_raw_parts_mut(view.buf as *mut u8, view.len as usize)
            },
            _ => &mut [],
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Buffer::View(view) = self {
            unsafe { ffi::PyBuffer_Release(view) };
        }
    }
}

/// Create a bytes object of `size` bytes that `fill` writes before it is returned.
pub fn new_bytes(py: Python<'_>, size: usize, fill: impl FnOnce(&mut [u8]) -> PyResult<()>) -> PyResult<Py<PyAny>> {
    unsafe {
        let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size as ffi::Py_ssize_t);
        let owned: Bound<'_, PyAny> = Bound::from_owned_ptr_or_err(py, made)?;
        let start = ffi::PyBytes_AsString(made) as *mut u8;
        // Every caller writes each byte, or fails and the object is dropped.
        let out = std::slice::from_raw_parts_mut(start, size);
        fill(out)?;
        Ok(owned.unbind())
    }
}
