//! The layers of the model. Each has a `forward` and the `backward` that goes with it.
//!
//! A layer works on rows: one row of numbers for each token of each sequence. `backward` takes the gradient of the loss
//! by the layer's output and gives the gradients by its input and by its parameters. Gradients by parameters are always
//! added to what is there, since several sequences and, for the tied embedding, two layers contribute.

pub(crate) mod attention;
pub(crate) mod embedding;
pub(crate) mod gelu;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod norm;
