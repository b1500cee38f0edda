//! The current attempt of a program, and its answer so far.

use axum::body::Bytes;
use hypha_model::Payload;
use tokio::sync::mpsc;

use crate::Attempt;
use crate::running::RunReporter;

pub(crate) struct CurrentAttempt {
    pub(super) attempt: String,
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) input: Payload,
    reporter: RunReporter,
    taken: bool,
    pieces: Option<Vec<u8>>,
    answer: Option<ProgramAnswer>,
}

/// A program's answer for its attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProgramAnswer {
    Result(Payload),
    Failure(String),
    /// The input cannot be used, here or elsewhere.
    Refusal(String),
}

/// The result exceeds its limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl CurrentAttempt {
    pub(super) fn new(attempt: &Attempt, reporter: RunReporter) -> CurrentAttempt {
        CurrentAttempt {
            attempt: attempt.id.to_string(),
            model: attempt.model.to_string(),
            stream: attempt.stream,
            input: attempt.input.clone(),
            reporter,
            taken: false,
            pieces: None,
            answer: None,
        }
    }

    /// Whether the program has fetched it.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken
    }

    /// Its answer, and its reporter.
    pub(crate) fn into_parts(self) -> (Option<ProgramAnswer>, RunReporter) {
        let pieces = self.pieces.map(|bytes| ProgramAnswer::Result(Payload::from(bytes)));
        (self.answer.or(pieces), self.reporter)
    }

    /// Whether the program has finished it.
    pub(crate) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) fn take(&mut self) {
        self.taken = true;
    }

    pub(super) fn answer(&mut self, answer: ProgramAnswer) {
        self.answer = Some(answer);
    }

    /// Declares the pieces so far complete; returns whether there were any.
    pub(super) fn finish_pieces(&mut self) -> bool {
        let Some(bytes) = self.pieces.take() else { return false };
        self.answer = Some(ProgramAnswer::Result(Payload::from(bytes)));
        true
    }

    pub(super) fn permille(&self) -> u16 {
        *self.reporter.progress.borrow()
    }

    pub(super) fn progress(&self, permille: u16) {
        self.reporter.progress.send_replace(permille);
    }

    /// Appends a piece to the result; returns the sender for it, if the output is streamed.
    pub(super) fn append(
        &mut self,
        piece: &Bytes,
        most: usize,
    ) -> Result<Option<mpsc::Sender<Bytes>>, TooLarge> {
        let pieces = self.pieces.get_or_insert_default();
        if pieces.len() + piece.len() > most {
            return Err(TooLarge);
        }
        pieces.extend_from_slice(piece);
        let heard = self.stream && !piece.is_empty();
        Ok(heard.then(|| self.reporter.output.clone()))
    }
}
