//! A raw client: sends exactly the given bytes, and returns replies with their raw bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::reply::{self, Reply, show};

/// Maximum wait for bytes before a test fails.
pub const READ_MAX: Duration = Duration::from_secs(60);

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One connection to a server.
pub struct Client {
    stream: Stream,
    buffer: Vec<u8>,
    /// Number of bytes of `buffer` already returned as replies.
    taken: usize,
}

impl Client {
    /// Connects to a port on 127.0.0.1.
    ///
    /// # Panics
    /// If no process listens there.
    #[must_use]
    pub fn tcp(port: u16) -> Client {
        Client::try_tcp(port).unwrap_or_else(|error| panic!("connecting to port {port}: {error}"))
    }

    /// Connects to a port on 127.0.0.1.
    ///
    /// # Errors
    /// If no process listens there.
    pub fn try_tcp(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_MAX))?;
        stream.set_write_timeout(Some(READ_MAX))?;
        Ok(Client { stream: Stream::Tcp(stream), buffer: Vec::new(), taken: 0 })
    }

    /// Connects to a Unix socket.
    ///
    /// # Panics
    /// If no process listens there.
    #[must_use]
    pub fn unix(path: &Path) -> Client {
        let stream =
            UnixStream::connect(path).unwrap_or_else(|error| panic!("connecting to {}: {error}", path.display()));
        stream.set_read_timeout(Some(READ_MAX)).expect("a socket takes a timeout");
        Client { stream: Stream::Unix(stream), buffer: Vec::new(), taken: 0 }
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// If the server has closed the connection, or doesn't accept the bytes.
    pub fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }

    /// Sends bytes unchanged.
    ///
    /// # Panics
    /// If the server has closed the connection, or doesn't accept the bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).unwrap_or_else(|error| panic!("sending {}: {error}", show(bytes)));
    }

    /// Sends a command without waiting for its reply.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let bytes = encode(args);
        self.send_raw(&bytes);
    }

    /// Sends a command and waits for its reply.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(args);
        self.receive()
    }

    /// Sends a command given as words separated by spaces, and waits for its reply.
    pub fn call(&mut self, words: &str) -> Reply {
        let args: Vec<&str> = words.split(' ').collect();
        self.command(&args)
    }

    /// Sends all commands in one write, without reading the replies.
    ///
    /// # Panics
    /// If the server closes the connection.
    pub fn send_together<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) {
        let mut bytes = Vec::new();
        for args in commands {
            encode_into(&mut bytes, args);
        }
        self.send_raw(&bytes);
    }

    /// Sends all commands in one write and returns the replies. Reads while it writes. If it wrote
    /// everything first, the client and the server could each wait until the other side reads.
    ///
    /// # Panics
    /// If the server closes the connection.
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        for args in commands {
            encode_into(&mut bytes, args);
        }
        self.exchange(&bytes, commands.len()).into_iter().map(|(reply, _)| reply).collect()
    }

    /// Sends `bytes` from a separate thread and reads `count` replies, each with its raw bytes.
    ///
    /// # Panics
    /// If the server closes the connection or is silent for [`READ_MAX`].
    pub fn exchange(&mut self, bytes: &[u8], count: usize) -> Vec<(Reply, Vec<u8>)> {
        self.write_beside(bytes, |client| (0..count).map(|_| client.receive_raw()).collect())
    }

    /// Sends `bytes` from a separate thread and reads replies up to and including the bulk `last`,
    /// each with its raw bytes.
    ///
    /// # Panics
    /// If the server closes the connection or is silent for [`READ_MAX`].
    pub fn exchange_until(&mut self, bytes: &[u8], last: &[u8]) -> Vec<(Reply, Vec<u8>)> {
        self.write_beside(bytes, |client| {
            let mut replies = Vec::new();
            loop {
                replies.push(client.receive_raw());
                if matches!(&replies[replies.len() - 1].0, Reply::Bulk(text) if text == last) {
                    return replies;
                }
            }
        })
    }

    /// Runs `read` while a thread writes `bytes`.
    fn write_beside<T>(&mut self, bytes: &[u8], read: impl FnOnce(&mut Client) -> T) -> T {
        let mut writer: Box<dyn Write + Send> = match &self.stream {
            Stream::Tcp(stream) => Box::new(stream.try_clone().expect("a socket can be cloned")),
            Stream::Unix(stream) => Box::new(stream.try_clone().expect("a socket can be cloned")),
        };
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(bytes).expect("the server accepts the pipeline"));
            read(self)
        })
    }

    /// Returns the next reply.
    ///
    /// # Panics
    /// If the server closes the connection, is silent for [`READ_MAX`], or sends bytes that aren't
    /// a reply.
    pub fn receive(&mut self) -> Reply {
        self.receive_raw().0
    }

    /// Returns the next reply and its raw bytes.
    ///
    /// # Panics
    /// If the server closes the connection, is silent for [`READ_MAX`], or sends bytes that aren't
    /// a reply.
    pub fn receive_raw(&mut self) -> (Reply, Vec<u8>) {
        self.try_receive()
            .unwrap_or_else(|error| panic!("no reply: {error}; unread: {}", show(&self.buffer[self.taken..])))
    }

    /// Returns the next reply and its raw bytes.
    ///
    /// # Errors
    /// If the server closes the connection ([`io::ErrorKind::UnexpectedEof`]), is silent for
    /// [`READ_MAX`], or sends bytes that aren't a reply.
    pub fn try_receive(&mut self) -> io::Result<(Reply, Vec<u8>)> {
        // Each parse starts at the reply's first byte. If the reply ends within a bulk, it is
        // parsed again only when that bulk is complete. Reading a reply of 512 MB therefore takes
        // linear time.
        let mut retry_len = 1;
        loop {
            let unread = &self.buffer[self.taken..];
            if unread.len() >= retry_len {
                match reply::parse(unread) {
                    Ok(Some((reply, length))) => {
                        let raw = unread[..length].to_vec();
                        self.taken += length;
                        if self.taken == self.buffer.len() || self.taken > 1 << 20 {
                            self.buffer.drain(..self.taken);
                            self.taken = 0;
                        }
                        return Ok((reply, raw));
                    }
                    Ok(None) => retry_len = if unread.len() > 1 << 20 { missing_len(unread) } else { unread.len() + 1 },
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
                }
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Returns received bytes that aren't part of a returned reply, such as a partial reply after
    /// [`Client::try_receive`] failed.
    #[must_use]
    pub fn unread(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Returns all bytes up to the end of the connection, including received bytes that aren't part
    /// of a returned reply. A reset counts as the end, because the kernel sends a reset if a server
    /// closes a socket with unread bytes.
    ///
    /// # Panics
    /// If the server neither sends bytes nor closes the connection for [`READ_MAX`], or the socket
    /// fails with another error.
    pub fn read_to_end(&mut self) -> Vec<u8> {
        loop {
            match self.fill() {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Ok(_) => {}
                Err(error) => panic!("the connection doesn't end: {error}; read: {}", show(&self.buffer[self.taken..])),
            }
        }
        self.buffer.split_off(self.taken)
    }

    /// Reads and keeps bytes. Returns true when the server closes the connection, and false when it
    /// has been silent for `limit`.
    ///
    /// # Panics
    /// If the socket fails with an unexpected error.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        self.set_read_timeout(limit);
        let ended = loop {
            match self.fill() {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break true,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    break false;
                }
                Err(error) => panic!("reading: {error}"),
            }
        };
        self.set_read_timeout(READ_MAX);
        ended
    }

    /// Returns whether bytes of a reply arrive within `limit`.
    pub fn has_reply_within(&mut self, limit: Duration) -> bool {
        self.set_read_timeout(limit);
        let result = self.fill();
        self.set_read_timeout(READ_MAX);
        matches!(result, Ok(n) if n > 0)
    }

    /// Reads once, for at most `limit`. Returns whether the connection is still open afterwards,
    /// even if no bytes arrived. Returns false if the server has closed the connection, or if the
    /// socket has failed.
    ///
    /// # Panics
    /// If `limit` is zero.
    pub fn is_open_after(&mut self, limit: Duration) -> bool {
        self.set_read_timeout(limit);
        let result = self.fill();
        self.set_read_timeout(READ_MAX);
        match result {
            Ok(n) => n > 0,
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        }
    }

    /// Sets the timeout of a read.
    ///
    /// # Panics
    /// If `limit` is zero.
    pub fn set_read_timeout(&mut self, limit: Duration) {
        let result = match &self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(limit)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(limit)),
        };
        result.expect("a socket takes a timeout");
    }

    /// Limits the kernel's receive buffer of this client. By default the kernel lets this buffer
    /// grow for a client that reads much data, up to 32 MiB on some hosts. A test of output limits
    /// would then need more data.
    ///
    /// # Panics
    /// If the kernel rejects the size.
    pub fn set_receive_buffer(&mut self, bytes: usize) {
        let result = match &self.stream {
            Stream::Tcp(stream) => socket2::SockRef::from(stream).set_recv_buffer_size(bytes),
            Stream::Unix(stream) => socket2::SockRef::from(stream).set_recv_buffer_size(bytes),
        };
        result.expect("a socket has a receive buffer");
    }

    /// Sets the timeout of a write.
    ///
    /// # Panics
    /// If `limit` is zero.
    pub fn set_write_timeout(&mut self, limit: Duration) {
        let result = match &self.stream {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(limit)),
            Stream::Unix(stream) => stream.set_write_timeout(Some(limit)),
        };
        result.expect("a socket takes a timeout");
    }

    /// Closes the sending half of the connection. The client can still read.
    pub fn close_write(&mut self) {
        // The error is ignored: it means that the server has already closed the connection, which
        // later reads detect.
        let _ = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    fn fill(&mut self) -> io::Result<usize> {
        /// Maximum number of bytes requested in one read.
        const CHUNK_LEN: usize = 256 * 1024;
        let start = self.buffer.len();
        self.buffer.resize(start + CHUNK_LEN, 0);
        let result = loop {
            let result = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(&mut self.buffer[start..]),
                Stream::Unix(stream) => stream.read(&mut self.buffer[start..]),
            };
            // If this process is suspended and resumed, the kernel interrupts a read that has a
            // timeout.
            if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
                break result;
            }
        };
        self.buffer.truncate(start + result.as_ref().map_or(0, |n| *n));
        result
    }
}

/// Returns the length that the incomplete reply `unread` must at least have before the next attempt
/// to parse it. If `unread` ends within a bulk, this is the end of that bulk. Otherwise it is one
/// byte more than the current length.
fn missing_len(unread: &[u8]) -> usize {
    let mut at = 0;
    while let Some(header) = unread[at..].iter().position(|byte| *byte == b'\r') {
        let is_bulk = matches!(unread[at], b'$' | b'=' | b'!');
        let digits = unread.get(at + 1..at + header).and_then(|digits| std::str::from_utf8(digits).ok());
        let bulk: Option<usize> = digits.filter(|_| is_bulk).and_then(|digits| digits.parse().ok());
        at += header + 2 + bulk.map_or(0, |length| length + 2);
        if at > unread.len() {
            return at;
        }
    }
    unread.len() + 1
}

/// Encodes a command as a RESP array of bulks.
#[must_use]
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_into(&mut bytes, args);
    bytes
}

/// Appends a command as a RESP array of bulks.
pub fn encode_into<A: AsRef<[u8]>>(bytes: &mut Vec<u8>, args: &[A]) {
    bytes.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_reply_lacks_the_rest_of_its_last_bulk() {
        let whole = b"*4\r\n$0\r\n\r\n$-1\r\n:12\r\n$5\r\nhello\r\n";
        for (len, missing) in [(1, 2), (4, 5), (8, 10), (10, 11), (15, 16), (22, 23), (24, 31), (30, 31)] {
            assert_eq!(missing_len(&whole[..len]), missing, "of {len}");
        }
    }
}
