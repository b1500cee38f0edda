//! Where each tensor is in the one buffer of all parameters, and with what values it starts.
//!
//! Names and shapes are those of GPT-2 at Hugging Face, where a linear layer's matrix has a row for each input. The
//! order is the model's, and each weight is followed by its bias, so that one slice holds both.

use std::ops::Range;

use hypha_model::Rng;

use crate::config::Config;

/// One named tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Such as `transformer.h.0.attn.c_attn.weight`.
    pub name: String,
    /// Its dimensions: one for biases and norms, two for matrices.
    pub shape: Vec<usize>,
    /// Its place in the buffer.
    pub range: Range<usize>,
}

/// The tensors of a model. Gradients and moments are laid out like the parameters.
#[derive(Clone, Debug)]
pub struct Layout {
    tensors: Vec<Tensor>,
    pub(crate) token_embedding: Range<usize>,
    pub(crate) position_embedding: Range<usize>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) final_norm: Affine,
}

/// The places of one block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) norm_1: Affine,
    pub(crate) attention_in: Affine,
    pub(crate) attention_out: Affine,
    pub(crate) norm_2: Affine,
    pub(crate) feed_in: Affine,
    pub(crate) feed_out: Affine,
}

/// The places of a weight and of the bias that follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    start: usize,
    middle: usize,
    end: usize,
}

impl Affine {
    /// Weight and bias in `flat`.
    pub(crate) fn of<'a, R>(&self, flat: &'a [R]) -> (&'a [R], &'a [R]) {
        (&flat[self.start..self.middle], &flat[self.middle..self.end])
    }

    /// Weight and bias in `flat`, to write.
    pub(crate) fn of_mut<'a, R>(&self, flat: &'a mut [R]) -> (&'a mut [R], &'a mut [R]) {
        flat[self.start..self.end].split_at_mut(self.middle - self.start)
    }
}

impl Layout {
    /// The layout of a model of a valid size.
    pub fn new(config: &Config) -> Self {
        let width = config.width;
        let mut tensors = Vec::new();
        let token_embedding = add(&mut tensors, "wte.weight", &[config.vocabulary, width]);
        let position_embedding = add(&mut tensors, "wpe.weight", &[config.context, width]);
        let blocks =
            (0..config.layers).map(|layer| add_block(&mut tensors, layer, config)).collect();
        let final_norm = add_affine(&mut tensors, "ln_f", &[width]);
        Self { tensors, token_embedding, position_embedding, blocks, final_norm }
    }

    /// The number of parameters.
    #[allow(clippy::len_without_is_empty)] // A model always has some.
    pub fn len(&self) -> usize {
        self.tensors.last().map_or(0, |tensor| tensor.range.end)
    }

    /// All tensors, in the order of the buffer.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The values that training starts with, as GPT-2's: small normal matrices, those that write to the residual stream
    /// smaller the more of them there are, and norms and biases that change nothing.
    pub fn initial_values(&self, seed: u64) -> Vec<f32> {
        const DEVIATION: f64 = 0.02;
        let mut rng = Rng::new(seed);
        let mut values = vec![0.0; self.len()];
        let residual = DEVIATION / (2.0 * self.blocks.len() as f64).sqrt();
        for tensor in &self.tensors {
            let part = &mut values[tensor.range.clone()];
            if tensor.is_matrix() {
                let is_residual = tensor.name.ends_with("c_proj.weight");
                let deviation = if is_residual { residual } else { DEVIATION };
                part.fill_with(|| (deviation * rng.normal()) as f32);
            } else if tensor.name.ends_with(".weight") {
                part.fill(1.0);
            }
        }
        values
    }
}

impl Tensor {
    /// Matrices have two dimensions, embeddings included; only they decay.
    pub(crate) fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }
}

fn add_block(tensors: &mut Vec<Tensor>, layer: usize, config: &Config) -> Block {
    let (width, inner) = (config.width, config.inner_width());
    let mut add =
        |name: &str, shape: &[usize]| add_affine(tensors, &format!("h.{layer}.{name}"), shape);
    Block {
        norm_1: add("ln_1", &[width]),
        attention_in: add("attn.c_attn", &[width, 3 * width]),
        attention_out: add("attn.c_proj", &[width, width]),
        norm_2: add("ln_2", &[width]),
        feed_in: add("mlp.c_fc", &[width, inner]),
        feed_out: add("mlp.c_proj", &[inner, width]),
    }
}

fn add_affine(tensors: &mut Vec<Tensor>, name: &str, shape: &[usize]) -> Affine {
    let weight = add(tensors, &format!("{name}.weight"), shape);
    let bias = add(tensors, &format!("{name}.bias"), &shape[shape.len() - 1..]);
    Affine { start: weight.start, middle: bias.start, end: bias.end }
}

fn add(tensors: &mut Vec<Tensor>, name: &str, shape: &[usize]) -> Range<usize> {
    let start = tensors.last().map_or(0, |tensor| tensor.range.end);
    let range = start..start + shape.iter().product::<usize>();
    let name = format!("transformer.{name}");
    tensors.push(Tensor { name, shape: shape.to_vec(), range: range.clone() });
    range
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Config = Config { layers: 2, width: 8, heads: 2, context: 4, vocabulary: 16 };

    #[test]
    fn tensors_fill_the_buffer_in_order() {
        let layout = Layout::new(&CONFIG);
        let mut end = 0;
        for tensor in layout.tensors() {
            assert_eq!(tensor.range.start, end, "{}", tensor.name);
            assert_eq!(tensor.range.len(), tensor.shape.iter().product::<usize>());
            end = tensor.range.end;
        }
        assert_eq!(end, layout.len());
        assert_eq!(layout.tensors().len(), 2 + 2 * 12 + 2);
    }

    #[test]
    fn initial_values_repeat_for_a_seed_and_have_the_right_spread() {
        let layout = Layout::new(&Config { width: 64, ..CONFIG });
        let values = layout.initial_values(1);
        assert_eq!(values, layout.initial_values(1));
        assert_ne!(values, layout.initial_values(2));
        let cases = [
            ("transformer.wte.weight", 0.0, 0.02),
            ("transformer.h.1.mlp.c_fc.weight", 0.0, 0.02),
            ("transformer.h.1.mlp.c_proj.weight", 0.0, 0.01),
            ("transformer.h.1.mlp.c_proj.bias", 0.0, 0.0),
            ("transformer.ln_f.weight", 1.0, 0.0),
        ];
        for (name, mean, deviation) in cases {
            let tensor = layout.tensors().iter().find(|tensor| tensor.name == name).unwrap();
            let part: Vec<f64> =
                values[tensor.range.clone()].iter().map(|value| f64::from(*value)).collect();
            let count = part.len() as f64;
            let average = part.iter().sum::<f64>() / count;
            let spread = (part.iter().map(|v| (v - average).powi(2)).sum::<f64>() / count).sqrt();
            assert!((average - mean).abs() < 0.002, "{name}: {average}");
            assert!((spread - deviation).abs() < 0.002, "{name}: {spread}");
        }
    }
}
