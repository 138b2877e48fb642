// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Decoding and dispatch of control commands.

mod counter_set;
mod counters;
mod cq;
mod gid;
mod mr;
mod multicast;
mod mw;
mod pd;
mod port;
mod qp;
mod srq;

use recorder::Event;
use virtio_rdma_abi::ctrl::{
    CmdAddGid, CmdAddGidVlan, CmdAllocMw, CmdAttachMcast, CmdBindCounterSet, CmdCreateCounterSet,
    CmdCreateCq, CmdCreateCqRing, CmdCreateMr, CmdCreatePd, CmdCreateQp, CmdCreateQpRings,
    CmdCreateSrq, CmdDeallocMw, CmdDelGid, CmdDeregMr, CmdDestroyCounterSet, CmdDestroyCq,
    CmdDestroyPd, CmdDestroyQp, CmdDestroySrq, CmdDetachMcast, CmdGetDmaMr, CmdMapMrSg,
    CmdModifyCq, CmdModifyQp, CmdModifySrq, CmdQueryCounterSet, CmdQueryCounters, CmdQueryPkey,
    CmdQueryPort, CmdQueryQp, CmdQuerySrq, CmdRegUserMr, CmdRegUserMrPages, CmdReqNotify,
    CmdReregMr, CmdResizeCq, CmdRevokeMr, CmdSetPort, CmdSetRateLimit, Command, ControlCommand,
    Empty, RESPONSE_OK,
};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::PORT;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::wire::Wire;

use crate::error::{at_least, at_most, exactly, refusal, Reason, Refusal, Result, What};
use crate::Hca;

impl Hca {
    /// Executes one control command: a command byte and its request structure. Appends the response
    /// to `response`: one byte, and on success the response structure. `room` is the size of the
    /// driver's response buffer in bytes; a command whose response would not fit is not executed.
    ///
    /// If the HCA has failed, the response is `EIO`.
    ///
    /// The call may wait as long as a worker's turn takes, so a worker must not make it.
    pub fn command(&self, request: &[u8], room: usize, response: &mut Vec<u8>) {
        let command = request.first().copied().unwrap_or_default();
        let ordered = self.ordered_refusal(command);
        let control = self.control.lock();
        let start = response.len();
        response.push(RESPONSE_OK);
        let mut qpn = Qpn::default();
        let mut call = Call {
            data: request.get(1..).unwrap_or_default(),
            room,
            response,
            qpn: &mut qpn,
        };
        let executed = match ordered {
            Some(refusal) => Some(Err(refusal)),
            None => self.contained(|| self.dispatch(request, &mut call)),
        };
        let failed = Err(refusal(Reason::DeviceFailed, What::Command, command));
        let refused = executed.unwrap_or(failed).err();
        if let Some(refusal) = &refused {
            response.truncate(start);
            response.push(refusal.errno().value());
        }
        self.note_event(Event::command(qpn.get(), command, refused));
        drop(control);
        self.virtqueues().send_interrupts();
    }

    /// The command with this number, if the negotiated features permit it.
    fn known(&self, number: u8) -> Result<Command> {
        let unsupported = refusal(Reason::NotSupported, What::Command, number);
        let command = Command::try_from(number).map_err(|_| unsupported)?;
        let because = |reason, feature: Feature| Refusal {
            reason,
            limit: feature.bit().into(),
            ..unsupported
        };
        match (command.feature(), command.replaced_by()) {
            (Some(needed), _) if !self.has_feature(needed) => {
                Err(because(Reason::NotNegotiated, needed))
            }
            (_, Some(later)) if self.has_feature(later) => Err(because(Reason::Replaced, later)),
            _ => Ok(command),
        }
    }

    /// Refuses a doorbell page that the device does not have.
    fn check_doorbell_page(&self, page: u32) -> Result<()> {
        let last = self.config().limits.doorbell_pages.saturating_sub(1);
        at_most(What::DoorbellPage, page, last)
    }

    fn dispatch(&self, request: &[u8], call: &mut Call<'_>) -> Result<()> {
        at_least(What::Request, request.len() as u64, 1u8)?;
        match self.known(request[0])? {
            Command::QueryPort => call.run(|cmd: CmdQueryPort| self.query_port(cmd)),
            Command::SetPort => call.run(|cmd: CmdSetPort| self.set_port(cmd)),
            Command::CreateCq if self.has_own_rings() => {
                call.run(|cmd: CmdCreateCqRing| self.create_cq_ring(cmd))
            }
            Command::CreateCq => call.run(|cmd: CmdCreateCq| self.create_cq_virtqueue(cmd)),
            Command::DestroyCq => call.run(|cmd: CmdDestroyCq| self.destroy_cq_command(cmd)),
            Command::CreatePd => call.run(|_: CmdCreatePd| self.create_pd()),
            Command::DestroyPd => call.run(|cmd: CmdDestroyPd| self.destroy_pd(cmd)),
            Command::GetDmaMr => call.run(|cmd: CmdGetDmaMr| self.get_dma_mr(cmd)),
            Command::RegUserMr if self.has_feature(Feature::MrPages) => {
                call.run(|cmd: CmdRegUserMrPages| self.reg_user_mr_pages(cmd))
            }
            Command::RegUserMr => call.run(|cmd: CmdRegUserMr| self.reg_user_mr(cmd)),
            Command::CreateMr => call.run(|cmd: CmdCreateMr| self.create_mr(cmd)),
            Command::MapMrSg => call.run(|cmd: CmdMapMrSg| self.map_mr_sg(cmd)),
            Command::ReregMr => call.run(|cmd: CmdReregMr| self.rereg_mr(cmd)),
            Command::DeregMr => call.run(|cmd: CmdDeregMr| self.dereg_mr(cmd)),
            Command::CreateQp if self.has_own_rings() => {
                call.run(|cmd: CmdCreateQpRings| self.create_qp_rings(cmd))
            }
            Command::CreateQp => call.run(|cmd: CmdCreateQp| self.create_qp_virtqueues(cmd)),
            Command::ModifyQp => call.on_qp(|cmd: &CmdModifyQp| cmd.qpn, |cmd| self.modify_qp(cmd)),
            Command::QueryQp => call.on_qp(|cmd: &CmdQueryQp| cmd.qpn, |cmd| self.query_qp(cmd)),
            Command::DestroyQp => call.on_qp(
                |cmd: &CmdDestroyQp| cmd.qpn,
                |cmd| self.destroy_qp_command(cmd),
            ),
            Command::QueryPkey => call.run(|cmd: CmdQueryPkey| self.query_pkey(cmd)),
            Command::AddGid if self.has_feature(Feature::GidVlan) => {
                call.run(|cmd: CmdAddGidVlan| self.add_gid_vlan(cmd))
            }
            Command::AddGid => call.run(|cmd: CmdAddGid| self.add_gid(cmd)),
            Command::DelGid => call.run(|cmd: CmdDelGid| self.del_gid(cmd)),
            Command::ReqNotifyCq => call.run(|cmd: CmdReqNotify| self.req_notify_cq(cmd)),
            Command::AllocMw => call.run(|cmd: CmdAllocMw| self.alloc_mw(cmd)),
            Command::DeallocMw => call.run(|cmd: CmdDeallocMw| self.dealloc_mw(cmd)),
            Command::CreateSrq => call.run(|cmd: CmdCreateSrq| self.create_srq(cmd)),
            Command::ModifySrq => call.run(|cmd: CmdModifySrq| self.modify_srq(cmd)),
            Command::QuerySrq => call.run(|cmd: CmdQuerySrq| self.query_srq(cmd)),
            Command::DestroySrq => call.run(|cmd: CmdDestroySrq| self.destroy_srq_command(cmd)),
            Command::ResizeCq => call.run(|cmd: CmdResizeCq| self.resize_cq(cmd)),
            Command::SetRateLimit => call.on_qp(
                |cmd: &CmdSetRateLimit| cmd.qpn,
                |cmd| self.set_rate_limit(cmd),
            ),
            Command::AttachMcast => {
                call.on_qp(|cmd: &CmdAttachMcast| cmd.qpn, |cmd| self.attach_mcast(cmd))
            }
            Command::DetachMcast => {
                call.on_qp(|cmd: &CmdDetachMcast| cmd.qpn, |cmd| self.detach_mcast(cmd))
            }
            Command::QueryCounters => call.run(|cmd: CmdQueryCounters| self.query_counters(cmd)),
            Command::ModifyCq => call.run(|cmd: CmdModifyCq| self.modify_cq(cmd)),
            Command::CreateCounterSet => {
                call.run(|cmd: CmdCreateCounterSet| self.create_counter_set(cmd))
            }
            Command::DestroyCounterSet => {
                call.run(|cmd: CmdDestroyCounterSet| self.destroy_counter_set(cmd))
            }
            Command::BindCounterSet => {
                let qpn = |cmd: &CmdBindCounterSet| cmd.qpn;
                call.on_qp(qpn, |cmd| self.bind_counter_set(cmd))
            }
            Command::QueryCounterSet => {
                call.run(|cmd: CmdQueryCounterSet| self.query_counter_set(cmd))
            }
            Command::RevokeMr => call.run(|cmd: CmdRevokeMr| self.revoke_mr_command(cmd)),
        }
    }
}

/// One command being executed.
struct Call<'a> {
    /// The request structure.
    data: &'a [u8],
    room: usize,
    response: &'a mut Vec<u8>,
    /// The QP that the request names, once it is decoded; 0 if it names none.
    qpn: &'a mut Qpn,
}

impl Call<'_> {
    /// Decodes the request, executes it and encodes its response. Bytes after the request are
    /// ignored.
    fn run<R: ControlCommand>(
        &mut self,
        execute: impl FnOnce(R) -> Result<R::Response>,
    ) -> Result<()> {
        self.on_qp(|_| Qpn::default(), execute)
    }

    /// Like [`run`](Self::run), for a request that names a QP.
    fn on_qp<R: ControlCommand>(
        &mut self,
        qpn: impl FnOnce(&R) -> Qpn,
        execute: impl FnOnce(R) -> Result<R::Response>,
    ) -> Result<()> {
        let size = <R::Response as Wire>::SIZE;
        at_least(What::Room, self.room as u64, 1 + size as u64)?;
        at_least(
            What::Request,
            1 + self.data.len() as u64,
            1 + R::SIZE as u64,
        )?;
        let request = R::get(&self.data[..R::SIZE]);
        *self.qpn = qpn(&request);
        let answer = execute(request)?;
        let start = self.response.len();
        self.response.resize(start + size, 0);
        answer.put(&mut self.response[start..]);
        Ok(())
    }
}

/// Doorbell page number of queues that have no doorbell page. No doorbell page has this number.
const NO_DOORBELL_PAGE: u32 = u32::MAX;

/// The response of commands that return no data.
const DONE: Empty = Empty::ZERO;

/// Refuses a port other than the only one of the HCA.
fn require_port(port: impl Into<u32>) -> Result<()> {
    exactly(What::Port, port.into(), PORT)
}
