//! The two framings of NRI's socket, one in the other.
//!
//! The outer one lets both ends be client and server over one connection: a connection's number and the length of what
//! follows, 4 bytes each, big endian (containerd/nri, pkg/net/multiplex/mux.go). Connection 1 is where the runtime calls the
//! plugin, connection 2 where the plugin calls the runtime. The inner one is ttrpc (containerd/ttrpc, PROTOCOL.md): length and
//! number of the stream, 4 bytes each, big endian; kind and flags, one byte each; then the message. A message may come in
//! several outer frames, and an outer frame may hold several.

use super::NriError;

/// The longest ttrpc message (containerd/ttrpc, channel.go, `messageLengthMax`), and the longest outer payload.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
const MUX_HEADER_BYTES: usize = 8;
const TTRPC_HEADER_BYTES: usize = 10;

/// A connection inside the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MuxConnection {
    /// The runtime asks.
    Plugin = 1,
    /// The plugin asks.
    Runtime = 2,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TtrpcKind {
    Request = 1,
    Response = 2,
}

/// One ttrpc message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TtrpcMessage {
    pub(super) connection: MuxConnection,
    pub(super) kind: TtrpcKind,
    pub(super) stream: u32,
    pub(super) body: Vec<u8>,
}

impl TtrpcMessage {
    /// Adds the message to `out` as it goes over the socket.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let inner = u32::try_from(self.body.len()).expect("this end writes short messages");
        out.extend((self.connection as u32).to_be_bytes());
        out.extend((inner + TTRPC_HEADER_BYTES as u32).to_be_bytes());
        out.extend(inner.to_be_bytes());
        out.extend(self.stream.to_be_bytes());
        out.extend([self.kind as u8, 0]);
        out.extend(&self.body);
    }
}

/// Puts messages together again.
#[derive(Default)]
pub(super) struct TtrpcReader {
    outer: Vec<u8>,
    connections: [Vec<u8>; 2],
}

impl TtrpcReader {
    /// Takes bytes as they come, and gives the messages that are complete with them.
    ///
    /// # Errors
    /// [`NriError::TooLong`]: nothing after it can be understood.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Vec<TtrpcMessage>, NriError> {
        self.outer.extend(bytes);
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some((header, payload)) =
            split_frame(&self.outer[at..], MUX_HEADER_BYTES, 4, MAX_MESSAGE_BYTES + TTRPC_HEADER_BYTES)?
        {
            at += MUX_HEADER_BYTES + payload.len();
            // Others are of a version to come: their payload is no affair of this one's.
            let (line, waiting) = match read_u32(header) {
                1 => (MuxConnection::Plugin, &mut self.connections[0]),
                2 => (MuxConnection::Runtime, &mut self.connections[1]),
                _ => continue,
            };
            waiting.extend(payload);
            take_messages(line, waiting, &mut messages)?;
        }
        self.outer.drain(..at);
        Ok(messages)
    }
}

/// Takes the messages off the front of what waits on a line. Those of an unknown kind are left out.
fn take_messages(
    line: MuxConnection,
    waiting: &mut Vec<u8>,
    messages: &mut Vec<TtrpcMessage>,
) -> Result<(), NriError> {
    let mut at = 0;
    while let Some((header, body)) = split_frame(&waiting[at..], TTRPC_HEADER_BYTES, 0, MAX_MESSAGE_BYTES)? {
        let kind = match header[8] {
            1 => Some(TtrpcKind::Request),
            2 => Some(TtrpcKind::Response),
            _ => None,
        };
        let stream = read_u32(&header[4..]);
        messages.extend(kind.map(|kind| TtrpcMessage {
            connection: line,
            kind,
            stream,
            body: body.to_vec(),
        }));
        at += TTRPC_HEADER_BYTES + body.len();
    }
    waiting.drain(..at);
    Ok(())
}

/// A header and its payload.
type RawFrame<'a> = (&'a [u8], &'a [u8]);

/// The next frame, if it is all there; where in its header the length is.
fn split_frame(
    bytes: &[u8],
    header: usize,
    length_at: usize,
    longest: usize,
) -> Result<Option<RawFrame<'_>>, NriError> {
    let Some((header, rest)) = bytes.split_at_checked(header) else { return Ok(None) };
    let length = read_u32(&header[length_at..]) as usize;
    if length > longest {
        return Err(NriError::TooLong(length));
    }
    Ok(rest.get(..length).map(|payload| (header, payload)))
}

fn read_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: MuxConnection, stream: u32, body: &[u8]) -> TtrpcMessage {
        TtrpcMessage { connection: line, kind: TtrpcKind::Request, stream, body: body.to_vec() }
    }

    #[test]
    fn messages_come_out_however_the_bytes_are_cut() {
        let sent = [
            message(MuxConnection::Plugin, 1, b"abc"),
            message(MuxConnection::Runtime, 3, b""),
            message(MuxConnection::Plugin, 5, b"z"),
        ];
        let mut bytes = Vec::new();
        sent.iter().for_each(|message| message.write(&mut bytes));
        for size in 1..=bytes.len() {
            let mut reader = TtrpcReader::default();
            let got: Vec<TtrpcMessage> =
                bytes.chunks(size).flat_map(|part| reader.read(part).unwrap()).collect();
            assert_eq!(got, sent, "{size} bytes at a time");
        }
    }

    #[test]
    fn a_message_may_be_spread_over_frames_and_share_one() {
        let mut inner = Vec::new();
        message(MuxConnection::Plugin, 7, b"hello").write(&mut inner);
        let inner = inner.split_off(MUX_HEADER_BYTES);
        let twice = [&inner[..], &inner[..]].concat();
        let mut bytes = Vec::new();
        for part in twice.chunks(4) {
            bytes.extend([1u32.to_be_bytes(), (part.len() as u32).to_be_bytes()].concat());
            bytes.extend(part);
        }
        let got = TtrpcReader::default().read(&bytes).unwrap();
        assert_eq!(
            got,
            [message(MuxConnection::Plugin, 7, b"hello"), message(MuxConnection::Plugin, 7, b"hello")]
        );
    }

    #[test]
    fn what_is_foreign_is_skipped_and_what_is_too_long_ends_it() {
        let mut bytes = [9u32.to_be_bytes(), 2u32.to_be_bytes()].concat();
        bytes.extend(b"??");
        message(MuxConnection::Plugin, 1, b"a").write(&mut bytes);
        assert_eq!(TtrpcReader::default().read(&bytes).unwrap(), [message(MuxConnection::Plugin, 1, b"a")]);
        for huge in [[1u32, u32::MAX], [9, 5 << 20]] {
            let bytes = huge.map(u32::to_be_bytes).concat();
            assert!(matches!(TtrpcReader::default().read(&bytes), Err(NriError::TooLong(_))));
        }
        let mut bytes = [1u32.to_be_bytes(), 10u32.to_be_bytes(), u32::MAX.to_be_bytes()].concat();
        bytes.extend([0; 6]);
        assert!(matches!(TtrpcReader::default().read(&bytes), Err(NriError::TooLong(_))));
    }
}
