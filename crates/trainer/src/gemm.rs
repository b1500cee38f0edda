//! Matrix products: views of slices, checked when they are made, and the only unsafe call of the crate behind them.
#![allow(unsafe_code)]

/// A matrix to read, in any part of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    // Invariant: (rows - 1) * row_stride + (columns - 1) * column_stride < data.len(), unless one side is empty.
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A matrix to write. Its rows are contiguous and do not overlap.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, T> {
    // Invariant: columns <= row_stride, and (rows - 1) * row_stride + columns <= data.len(), unless one side is empty.
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

/// What happens to the former contents of the matrix that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// The product replaces them.
    Replace,
    /// The product is added to them.
    Add,
}

impl<'a, T> Matrix<'a, T> {
    /// All of `data`, row by row.
    pub(crate) fn new(data: &'a [T], columns: usize) -> Self {
        Self::strided(data, rows_of(data.len(), columns), columns, columns)
    }

    /// `rows` rows of `columns` values whose starts are `row_stride` apart.
    pub(crate) fn strided(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert_fits(data.len(), rows, columns, row_stride);
        Self { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The same values with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

impl<'a, T> MatrixMut<'a, T> {
    /// All of `data`, row by row.
    pub(crate) fn new(data: &'a mut [T], columns: usize) -> Self {
        let rows = rows_of(data.len(), columns);
        Self::strided(data, rows, columns, columns)
    }

    /// `rows` rows of `columns` values whose starts are `row_stride` apart.
    pub(crate) fn strided(
        data: &'a mut [T],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        assert_fits(data.len(), rows, columns, row_stride);
        Self { data, rows, columns, row_stride }
    }
}

/// Writes `scale * left * right`.
pub(crate) fn multiply(
    out: MatrixMut<'_, f32>,
    write: Write,
    scale: f32,
    left: Matrix<'_, f32>,
    right: Matrix<'_, f32>,
) {
    assert_agree(&out, &left, &right);
    if out.rows == 0 || out.columns == 0 {
        return;
    }
    let inner = left.columns;
    if inner == 0 {
        return clear(out, write);
    }
    let stride = usize::cast_signed;
    // SAFETY: the sides agree and none is empty, as checked above. By the invariants of the views, every element that
    // the product reads or writes is inside its slice; a slice has at most isize::MAX bytes, so that a stride between
    // two of its elements fits an isize, and one that is never taken is not added. The slice that is written is
    // borrowed exclusively and its rows do not overlap. f32 is one of the types that `gemm` supports.
    unsafe {
        gemm::gemm(
            out.rows,
            out.columns,
            inner,
            out.data.as_mut_ptr(),
            1,
            stride(out.row_stride),
            write == Write::Add,
            left.data.as_ptr(),
            stride(left.column_stride),
            stride(left.row_stride),
            right.data.as_ptr(),
            stride(right.column_stride),
            stride(right.row_stride),
            1.0,
            scale,
            false,
            false,
            false,
            // Threads share out the batch, not the matrices.
            gemm::Parallelism::None,
        );
    }
}

fn rows_of(values: usize, columns: usize) -> usize {
    if values == 0 {
        return 0;
    }
    assert!(columns > 0 && values.is_multiple_of(columns), "{values} values in rows of {columns}");
    values / columns
}

fn assert_fits(values: usize, rows: usize, columns: usize, row_stride: usize) {
    if rows == 0 || columns == 0 {
        return;
    }
    let end = (rows - 1).checked_mul(row_stride).and_then(|start| start.checked_add(columns));
    assert!(
        columns <= row_stride
            && row_stride <= isize::MAX as usize
            && end.is_some_and(|end| end <= values),
        "{rows} rows of {columns} values, {row_stride} apart, are not in a slice of {values}"
    );
}

fn assert_agree<T>(out: &MatrixMut<'_, T>, left: &Matrix<'_, T>, right: &Matrix<'_, T>) {
    assert!(
        out.rows == left.rows && out.columns == right.columns && left.columns == right.rows,
        "{}×{} is not the product of {}×{} and {}×{}",
        out.rows,
        out.columns,
        left.rows,
        left.columns,
        right.rows,
        right.columns
    );
}

/// The product of matrices without an inner side is zero.
fn clear(out: MatrixMut<'_, f32>, write: Write) {
    if write == Write::Replace {
        for row in out.data.chunks_mut(out.row_stride).take(out.rows) {
            row[..out.columns].fill(0.0);
        }
    }
}

/// The definition of the product, one sum at a time: what [`multiply`] is compared with, and what the gradient check
/// uses for numbers of twice the precision.
#[cfg(test)]
pub(crate) fn multiply_naively<T: crate::real::Real>(
    out: MatrixMut<'_, T>,
    write: Write,
    scale: T,
    left: Matrix<'_, T>,
    right: Matrix<'_, T>,
) {
    assert_agree(&out, &left, &right);
    for row in 0..out.rows {
        for column in 0..out.columns {
            let mut sum = T::ZERO;
            for inner in 0..left.columns {
                let a = left.data[row * left.row_stride + inner * left.column_stride];
                let b = right.data[inner * right.row_stride + column * right.column_stride];
                sum += a * b;
            }
            let place = &mut out.data[row * out.row_stride + column];
            *place = scale * sum + if write == Write::Add { *place } else { T::ZERO };
        }
    }
}

#[cfg(test)]
mod tests {
    use hypha_model::Rng;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    struct Case {
        sides: [usize; 3],
        padding: [usize; 3],
        is_transposed: [bool; 2],
        write: Write,
        scale: f32,
        seed: u64,
    }

    fn cases() -> impl Strategy<Value = Case> {
        (
            [0..40usize, 0..40usize, 0..40usize],
            [0..5usize, 0..5usize, 0..5usize],
            any::<[bool; 2]>(),
            prop_oneof![Just(Write::Replace), Just(Write::Add)],
            -2.0..2.0f32,
            any::<u64>(),
        )
            .prop_map(|(sides, padding, is_transposed, write, scale, seed)| Case {
                sides,
                padding,
                is_transposed,
                write,
                scale,
                seed,
            })
    }

    /// A slice that ends with its last element, so that one read too many is outside it.
    fn slice(rng: &mut Rng, rows: usize, columns: usize, stride: usize) -> Vec<f32> {
        let len = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        (0..len).map(|_| rng.normal() as f32).collect()
    }

    fn operand(data: &[f32], sides: (usize, usize), stride: usize, flip: bool) -> Matrix<'_, f32> {
        if flip {
            Matrix::strided(data, sides.1, sides.0, stride).transposed()
        } else {
            Matrix::strided(data, sides.0, sides.1, stride)
        }
    }

    fn check(case: &Case) -> Result<(), TestCaseError> {
        let [rows, inner, columns] = case.sides;
        let mut rng = Rng::new(case.seed);
        let mut make = |sides: (usize, usize), flip: bool, padding: usize| {
            let (rows, columns) = if flip { (sides.1, sides.0) } else { sides };
            let stride = columns.max(1) + padding;
            (slice(&mut rng, rows, columns, stride), stride)
        };
        let (left, left_stride) = make((rows, inner), case.is_transposed[0], case.padding[0]);
        let (right, right_stride) = make((inner, columns), case.is_transposed[1], case.padding[1]);
        let (mut fast, out_stride) = make((rows, columns), false, case.padding[2]);
        let mut naive = fast.clone();
        let left = operand(&left, (rows, inner), left_stride, case.is_transposed[0]);
        let right = operand(&right, (inner, columns), right_stride, case.is_transposed[1]);
        let out = MatrixMut::strided(&mut fast, rows, columns, out_stride);
        multiply(out, case.write, case.scale, left, right);
        let out = MatrixMut::strided(&mut naive, rows, columns, out_stride);
        multiply_naively(out, case.write, case.scale, left, right);
        for (fast, naive) in fast.iter().zip(&naive) {
            prop_assert!((fast - naive).abs() <= 1e-4, "{fast} is not {naive}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn product_is_the_naive_product_and_padding_is_untouched(case in cases()) {
            check(&case)?;
        }
    }

    #[test]
    fn views_outside_their_slices_are_refused() {
        let cases: [(usize, usize, usize, usize); 4] =
            [(5, 2, 3, 3), (6, 2, 3, 2), (6, 3, 2, 3), (6, usize::MAX, 2, usize::MAX)];
        for (values, rows, columns, stride) in cases {
            let data = vec![0.0f32; values];
            let view = || Matrix::strided(&data, rows, columns, stride).rows;
            assert!(std::panic::catch_unwind(view).is_err(), "{rows}×{columns} by {stride}");
        }
        let data = [0.0f32; 6];
        let disagreeing = || {
            let mut out = [0.0f32; 4];
            let out = MatrixMut::new(&mut out, 2);
            multiply(out, Write::Replace, 1.0, Matrix::new(&data, 3), Matrix::new(&data, 3));
        };
        assert!(std::panic::catch_unwind(disagreeing).is_err());
    }
}
