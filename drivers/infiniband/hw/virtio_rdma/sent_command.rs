// SPDX-License-Identifier: GPL-2.0

//! Commands that the device has not answered yet, for traces and debugfs.

use crate::{
    abi::ctrl::{
        Command,
        ControlCommand,
        Empty, //
    },
    decode::answer::Answer,
    trace, //
};
use kernel::{
    device::Device,
    fmt,
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    },
};

/// A command that the driver has given to the device.
#[derive(Clone, Copy)]
pub(crate) struct SentCommand {
    command: Command,
    /// The number of its object, unless the command creates the object.
    number: Option<u32>,
    at: Instant<Monotonic>,
}

impl SentCommand {
    /// The command of `request`, which the caller is about to give to `dev`.
    pub(crate) fn new<R: ControlCommand>(dev: &Device, request: &R) -> Self {
        let this = Self {
            command: R::COMMAND,
            number: request.number(),
            at: Instant::now(),
        };
        this.trace(dev);
        this
    }

    fn trace(&self, dev: &Device) {
        trace::command(|| {
            let number = trace::number(self.number);
            (dev.name(), self.command.c_name(), number)
        });
    }

    /// The device has answered the command of an `R`.
    pub(crate) fn answered<R: ControlCommand>(&self, dev: &Device, answer: &Answer<R::Response>) {
        let new = match answer {
            Answer::Success(response) => R::new_number(response),
            Answer::Refused(_) | Answer::Invalid => None,
        };
        self.ended(dev, new, answer.c_name());
    }

    /// The device has answered a command that creates no object.
    pub(crate) fn answered_empty(&self, dev: &Device, answer: &Answer<Empty>) {
        self.ended(dev, None, answer.c_name());
    }

    /// No task waits for the answer any more, since the device does not work.
    pub(crate) fn unanswered(&self, dev: &Device) {
        self.ended(dev, None, c"NO_ANSWER");
    }

    fn ended(&self, dev: &Device, new: Option<u32>, result: &CStr) {
        trace::answer(|| {
            let (command, number) = (self.command.c_name(), trace::number(new.or(self.number)));
            let us = self.at.elapsed().as_micros_ceil();
            (dev.name(), command, number, result, us.unsigned_abs())
        });
    }
}

impl fmt::Display for SentCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command.c_name().to_str().unwrap_or_default();
        let (number, ms) = (trace::number(self.number), self.at.elapsed().as_millis());
        write!(f, "command={command} number={number} ms={ms}")
    }
}
