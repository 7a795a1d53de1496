//! Views: a chain of views reads the same elements as its steps one by one, and nothing writes
//! through a view.

use crate::it::{Random, close, eps, list, tensor};
use kjit_ops::{DType, Device, Index, Scalar, Tensor};

#[test]
fn chained_views_read_the_right_elements() {
    let mut random = Random(7);
    for round in 0..200 {
        let n = 2 * 3 * 4 * 5;
        // Each element is its own index, so a value shows its source.
        let base =
            Tensor::arange(0.into(), i64::from(n).into(), 1.into(), Some(DType::I32), &Device::Cpu)
                .unwrap();
        let base = base.reshape(&[2, 3, 4, 5]).unwrap();
        // Once lazily, and once with each step computed and copied.
        let zero = Tensor::full(&[], Scalar::Int(0), DType::I32, &Device::Cpu).unwrap();
        let (mut lazy, mut eager) = (base.add(&zero).unwrap(), base);
        for _ in 0..5 {
            let (kind, rank) = (random.next() % 5, lazy.rank() as i64);
            let step = |t: &Tensor, r: u64| -> Tensor {
                let axis = (r as i64) % rank;
                match kind {
                    0 => t.move_axes(&[axis], &[0]).unwrap(),
                    1 => t.flip(Some(&[axis])).unwrap(),
                    2 => {
                        let mut index = vec![Index::Slice(None, None, None); axis as usize];
                        index.push(Index::Slice(None, None, Some(if r & 8 == 0 { 2 } else { -2 })));
                        t.index(&index).unwrap()
                    }
                    3 => t.reshape(&[t.shape()[0] as i64, -1]).unwrap(),
                    _ => t
                        .expand_dims(&[0])
                        .unwrap()
                        .broadcast_to(&[&[2], t.shape()].concat())
                        .unwrap(),
                }
            };
            let r = random.next();
            lazy = step(&lazy, r);
            eager = step(&eager, r);
            let bytes = eager.to_bytes().unwrap();
            eager = Tensor::from_bytes(&bytes, DType::I32, eager.shape(), &Device::Cpu).unwrap();
        }
        assert_eq!(lazy.shape(), eager.shape(), "round {round}");
        assert_eq!(lazy.to_bytes().unwrap(), eager.to_bytes().unwrap(), "round {round}");
    }
}

#[test]
fn assignment_returns_a_new_tensor() {
    let x = Tensor::full(&[3, 4], Scalar::Int(0), DType::F32, &Device::Cpu).unwrap();
    let row = x.index(&[Index::At(1)]).unwrap();
    let five = Tensor::full(&[], Scalar::Int(5), DType::F32, &Device::Cpu).unwrap();
    let y = x.with(&[Index::At(1), Index::Slice(None, None, Some(-2))], &five).unwrap();
    assert_eq!(list(&y), [0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(list(&x), [0.0; 12]);
    assert_eq!(list(&row), [0.0; 4]);
    let mask = y.gt(&x).unwrap();
    assert_eq!(list(&y.index(&[Index::Tensor(mask.clone())]).unwrap()), [5.0, 5.0]);
    assert_eq!(
        list(
            &y.with(&[Index::Tensor(mask)], &x.index(&[Index::At(0), Index::At(0)]).unwrap())
                .unwrap()
        ),
        [0.0; 12]
    );
}

#[test]
fn out_of_range_indices_are_refused_with_number() {
    let x = Tensor::full(&[3, 4], Scalar::Int(0), DType::F32, &Device::Cpu).unwrap();
    let error = x.index(&[Index::At(-4)]).unwrap_err().to_string();
    assert!(error.contains("index -4 is out of bounds for axis 0 with size 3"), "{error}");
    let five = Tensor::full(&[1], Scalar::Int(5), DType::I64, &Device::Cpu).unwrap();
    assert!(x.take(&five, 1).unwrap().eval().is_err());
    assert!(x.index(&[Index::Tensor(five)]).is_err());
    assert!(x.index(&[Index::At(0), Index::At(0), Index::At(0)]).is_err());
}

/// Programs are remembered by structure. Equal structures with other elements, constants, offsets
/// and shapes must not be taken for each other.
#[test]
fn repeated_expressions_use_new_elements_and_constants() {
    let mut random = Random(31);
    let number = |v: f64| Tensor::full(&[], Scalar::Float(v), DType::F32, &Device::Cpu).unwrap();
    for round in 0..40u32 {
        let (rows, columns) = (1 + (round as usize / 4) % 3, 5 + round as usize % 2);
        let base = random.tensor(&[rows + 2, columns], DType::F32, 3.0);
        // Constants that are equal in some rounds only, and a slice from another row on.
        let (a, b, first) = (f64::from(round % 3), f64::from(round % 2), i64::from(round % 3));
        let slice = Index::Slice(Some(first), Some(first + rows as i64), None);
        let x = base.index(&[slice]).unwrap();
        let row = Tensor::arange(0.into(), 4.into(), 1.into(), None, &Device::Cpu).unwrap();
        let row = row.add(&tensor(&[Scalar::Int(i64::from(round % 2).into())], DType::I64, &[1]));
        let some = x.take(&row.unwrap(), 1).unwrap();
        let t = some.mul(&number(a)).unwrap().add(&number(b)).unwrap();
        let sum = t.sum(Some(&[1]), false, None).unwrap();
        let values = list(&base);
        let want: Vec<f64> = (0..rows * 4)
            .map(|i| {
                let at = (first as usize + i / 4) * columns + i % 4 + round as usize % 2;
                values[at] * a + b
            })
            .collect();
        close("the elements", &list(&t), &want, 2.0 * eps(DType::F32));
        let want: Vec<f64> = want.chunks(4).map(|row| row.iter().sum()).collect();
        close("the sums", &list(&sum), &want, 16.0 * eps(DType::F32));
    }
}
