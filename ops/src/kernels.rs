//! Kernels of the user, in CUDA on both vendors. They are compiled and cached like all others.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::eval;
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::node::Node;
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use std::sync::Arc;

/// An argument of a [`RawKernel`].
#[derive(Clone, Debug)]
pub enum KernelArg {
    /// The address of the tensor's first element.
    Tensor(Tensor),
    /// A number, converted to the parameter's type.
    Scalar(Scalar),
}

/// A parameter as declared in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Param {
    name: String,
    /// Whether it is a pointer to memory that the kernel may write.
    written: bool,
    pointer: bool,
    /// Its C type.
    kind: String,
}

/// A kernel of the user: CUDA source with an `extern "C" __global__ void name(…)`.
#[derive(Clone, Debug)]
pub struct RawKernel {
    name: String,
    text: String,
    params: Vec<Param>,
}

impl RawKernel {
    /// Parses the parameters of the kernel `name`; compiles nothing.
    ///
    /// # Errors
    /// [`Error::Value`] if the source has no such kernel.
    pub fn new(text: &str, name: &str) -> Result<RawKernel> {
        let fail = |why: &str| Error::value("RawKernel", format!("'{name}' {why}"));
        let plain = without_comments(text);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut from = 0;
        let list = loop {
            let rest = plain.get(from..).unwrap_or_default();
            let at = rest.find(name).ok_or_else(|| fail("is not a kernel in the source"))?;
            let (before, after) = (rest.get(..at).unwrap_or_default(), rest.get(at + name.len()..));
            from += at + name.len();
            let alone = !before.ends_with(is_word);
            if let Some(list) = after.and_then(|a| a.trim_start().strip_prefix('('))
                && alone
            {
                break list.split(')').next().unwrap_or_default().to_owned();
            }
        };
        let params = list
            .split(',')
            .map(str::trim)
            .filter(|p| !p.is_empty() && *p != "void")
            .map(|p| {
                let end = p.trim_end_matches(is_word);
                let kind = end.replace("__restrict__", "").replace("restrict", "");
                let pointer = kind.contains('*');
                let constant = kind.split('*').next().unwrap_or_default().contains("const");
                Param {
                    name: p.get(end.len()..).unwrap_or_default().to_owned(),
                    written: pointer && !constant,
                    pointer,
                    kind: kind
                        .replace("const", " ")
                        .split_whitespace()
                        .collect::<Vec<_>>()
                        .join(" "),
                }
            })
            .collect();
        Ok(RawKernel { name: name.to_owned(), text: text.to_owned(), params })
    }

    /// Runs the kernel. Returns a tensor for each tensor argument: for a pointer without `const`, a
    /// copy that the kernel has written. The arguments themselves do not change.
    ///
    /// # Errors
    /// [`Error::Value`] if the arguments do not match; [`Error::Absent`] on the CPU, which has no
    /// compiler; [`Error::Engine`] for a fault or with the compiler's message.
    ///
    /// # Safety
    /// The kernel accesses only its arguments' memory, within their sizes.
    #[allow(unsafe_code, reason = "a kernel may write anywhere")]
    pub unsafe fn launch(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &[KernelArg],
    ) -> Result<Vec<Tensor>> {
        let fail = |why: String| Error::value("RawKernel", format!("{}: {why}", self.name));
        if args.len() != self.params.len() {
            return Err(fail(format!(
                "{} arguments for {} parameters",
                args.len(),
                self.params.len()
            )));
        }
        let gpu = self.gpu(args)?;
        let mut out = Vec::new();
        let mut values: Vec<Value> = Vec::new();
        for (arg, param) in args.iter().zip(&self.params) {
            match (arg, param.pointer) {
                (KernelArg::Tensor(t), true) => {
                    if t.im.is_some() {
                        return Err(fail(format!(
                            "{} is complex, which is stored as two tensors",
                            param.name
                        )));
                    }
                    let node = eval::packed(&t.re)?;
                    let node = if param.written { gpu.duplicate(&node)? } else { node };
                    let buffer = eval::value(&node)?;
                    out.push(Tensor::real(Arc::clone(&node)));
                    values.push(Value::Memory(buffer, node));
                }
                (KernelArg::Scalar(v), false) => {
                    let bytes = number(*v, &param.kind).ok_or_else(|| {
                        fail(format!("{} has the unsupported type {}", param.name, param.kind))
                    })?;
                    values.push(Value::Bytes(bytes));
                }
                (_, true) => return Err(fail(format!("{} must be a tensor", param.name))),
                (_, false) => return Err(fail(format!("{} must be a number", param.name))),
            }
        }
        let text = format!("#include \"words.h\"\n#line 1 \"{}.cu\"\n{}", self.name, self.text);
        // SAFETY: this function's caller guarantees it.
        unsafe { gpu.own(&self.name, &text, grid, block, shared, &values)? };
        Ok(out)
    }

    fn gpu(&self, args: &[KernelArg]) -> Result<Arc<Gpu>> {
        let mut found: Option<Device> = None;
        for arg in args {
            if let KernelArg::Tensor(t) = arg {
                if let Some(device) = &found {
                    Device::same("RawKernel", device, t.device())?;
                }
                found = Some(t.device().clone());
            }
        }
        match found {
            Some(Device::Gpu(gpu)) => Ok(gpu),
            _ => Err(Error::value(
                "RawKernel",
                format!("{} needs a GPU: kernels cannot be compiled for the CPU", self.name),
            )),
        }
    }
}

/// An argument of a launch.
pub(crate) enum Value {
    /// Memory, and the node that owns it.
    Memory(Buffer, #[allow(dead_code, reason = "keeps the memory")] Arc<Node>),
    Bytes(Vec<u8>),
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (head, tail) = rest.split_at(at);
        out.push_str(head);
        rest = if tail.starts_with("//") {
            tail.find('\n').and_then(|n| tail.get(n..)).unwrap_or_default()
        } else if tail.starts_with("/*") {
            tail.find("*/").and_then(|n| tail.get(n + 2..)).unwrap_or_default()
        } else {
            out.push('/');
            tail.get(1..).unwrap_or_default()
        };
    }
    out + rest
}

/// The bytes of a number as a C type.
fn number(value: Scalar, kind: &str) -> Option<Vec<u8>> {
    let dtype = match kind {
        "float" => DType::F32,
        "double" => DType::F64,
        "bool" => DType::Bool,
        "char" | "signed char" | "int8_t" => DType::I8,
        "unsigned char" | "uint8_t" => DType::U8,
        "short" | "int16_t" => DType::I16,
        "unsigned short" | "uint16_t" => DType::U16,
        "int" | "int32_t" | "signed" | "signed int" => DType::I32,
        "unsigned" | "unsigned int" | "uint32_t" => DType::U32,
        "long long" | "int64_t" | "long" | "long int" | "long long int" => DType::I64,
        "unsigned long long" | "uint64_t" | "size_t" | "unsigned long" => DType::U64,
        _ => return None,
    };
    if let (Scalar::Int(v), true) = (value, dtype.is_int())
        && (v < dtype.range().0 || v > dtype.range().1)
    {
        return None;
    }
    if matches!(value, Scalar::Float(_)) && dtype.is_int() {
        return None;
    }
    Some(value.to_bytes(dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_kernel_parameters_are_parsed_from_source() {
        let text = "// saxpy(int wrong)\nextern \"C\" __global__ void saxpy_not(int a) {}\n\
                    extern \"C\" __global__ void saxpy(const float* __restrict__ x, float *y, \
                    float a, unsigned int n) {}";
        let kernel = RawKernel::new(text, "saxpy").unwrap();
        let said: Vec<_> = kernel
            .params
            .iter()
            .map(|p| (p.name.as_str(), p.pointer, p.written, p.kind.as_str()))
            .collect();
        assert_eq!(
            said,
            [
                ("x", true, false, "float*"),
                ("y", true, true, "float *"),
                ("a", false, false, "float"),
                ("n", false, false, "unsigned int")
            ]
        );
        assert!(RawKernel::new(text, "gone").is_err());
    }
}
