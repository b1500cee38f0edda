//! One request or response on a stream of its own: the bytes, bounded. The driver decodes them, so
//! that a malformed request gets a response and not a closed stream.

use std::io;

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use hypha_wire::Message;
use hypha_wire::request::{Request, Response};
use libp2p::StreamProtocol;
use libp2p::request_response;

pub(crate) const PROTOCOL: StreamProtocol = StreamProtocol::new("/hypha/request/1");

#[derive(Clone, Default)]
pub(crate) struct Codec;

impl request_response::Codec for Codec {
    type Protocol = StreamProtocol;
    type Request = Vec<u8>;
    type Response = Vec<u8>;

    async fn read_request<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        read(io, Request::MAX_BYTES).await
    }

    async fn read_response<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        read(io, Response::MAX_BYTES).await
    }

    async fn write_request<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        request: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&request).await
    }

    async fn write_response<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        response: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&response).await
    }
}

/// Everything up to the end of the stream, at most one byte over the limit: then it is read no further and
/// decoding refuses it.
async fn read<T: AsyncRead + Unpin>(io: &mut T, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io.take(max as u64 + 1).read_to_end(&mut bytes).await?;
    Ok(bytes)
}
