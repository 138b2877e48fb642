// SPDX-License-Identifier: GPL-2.0

//! Writing of a WQE.

use crate::{
    abi::wqe::{
        Member,
        Sge,
        SqHeader, //
    },
    rdma::{
        queue_memory::Span,
        wr, //
    }, //
};

/// A WQE that is being written, in a slot of a ring or in a virtqueue's buffer. Bytes that it does
/// not use keep values of an earlier WQE; the device ignores them. The caller stays within the
/// limits on SGEs and inline data for which the slot or buffer was allocated.
pub(super) struct Wqe<'a> {
    span: Span<'a>,
    /// Total length of the SGEs in bytes.
    length: u32,
}

impl<'a> Wqe<'a> {
    /// A WQE at the start of a slot or a buffer.
    #[inline]
    pub(super) fn new(span: impl Into<Span<'a>>) -> Self {
        Self {
            span: span.into(),
            length: 0,
        }
    }

    /// Total length of the SGEs in bytes, which bounds the byte count of the completion.
    #[inline]
    pub(super) fn length(&self) -> u32 {
        self.length
    }

    /// Writes bytes from `offset` on.
    #[inline]
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.span.put(offset, bytes);
    }

    /// Writes the header of a send WQE except for the union at its end.
    #[inline]
    pub(super) fn put_header(&mut self, header: &SqHeader) {
        self.put(0, &header.to_bytes()[..SqHeader::UNION]);
    }

    /// Writes the union at the end of the header.
    #[inline]
    pub(super) fn put_member<M: Member>(&mut self, member: &M) {
        let mut union = [0; SqHeader::SIZE - SqHeader::UNION];
        member.store(&mut union);
        self.put(SqHeader::UNION, &union[..M::SIZE]);
    }

    /// Writes the SGE in front of an inline payload.
    #[inline]
    pub(super) fn put_inline_sge(&mut self, offset: usize, length: u32) {
        let sge = Sge {
            length,
            ..Sge::default()
        };
        self.put(offset, &sge.to_bytes());
        self.length = length;
    }

    /// Writes SGEs from `offset` on, the last part of the WQE, and returns the WQE's length.
    #[inline]
    pub(super) fn put_sges(&mut self, mut offset: usize, sges: &[wr::Sge]) -> usize {
        for sge in sges {
            let sge = Sge {
                addr: sge.addr(),
                length: sge.length(),
                lkey: sge.lkey(),
            };
            self.put(offset, &sge.to_bytes());
            self.length = self.length.saturating_add(sge.length);
            offset = offset.saturating_add(Sge::SIZE);
        }
        offset
    }
}
