//! Explanations of HIP's result codes. Before ROCm 6 the library's messages only repeat the name.

use crate::CodeName;
use crate::error::code;

/// Not enough device or page-locked memory.
pub const hipErrorOutOfMemory: u32 = 2;
/// HIP found no usable GPU.
pub const hipErrorNoDevice: u32 = 100;
/// Unknown device number. `hipInit` of ROCm 5 returns it if the machine lacks a GPU.
pub const hipErrorInvalidDevice: u32 = 101;
/// The code object is damaged.
pub const hipErrorInvalidImage: u32 = 200;
/// The code object is for a different architecture.
pub const hipErrorNoBinaryForGpu: u32 = 209;
/// The file is not a code object.
pub const hipErrorInvalidKernelFile: u32 = 218;
/// The file is not a code object (older libraries).
pub const hipErrorInvalidSource: u32 = 300;
/// The work is not finished. This is not an error.
pub const hipErrorNotReady: u32 = 600;
/// An uncorrectable error of the device's memory.
pub const hipErrorECCNotCorrectable: u32 = 214;
/// A kernel accessed an invalid address. All later calls fail.
pub const hipErrorIllegalAddress: u32 = 700;
/// A kernel exceeded the time limit. All later calls fail.
pub const hipErrorLaunchTimeOut: u32 = 702;
/// An assertion in a kernel failed. All later calls fail.
pub const hipErrorAssert: u32 = 710;
/// A kernel failed, and all later calls fail. A launch with a block larger than compiled for
/// returns it as well; later calls then work.
pub const hipErrorLaunchFailure: u32 = 719;
/// Peer access is already enabled. This is not an error.
pub const hipErrorPeerAccessAlreadyEnabled: u32 = 704;
/// The executable graph cannot be updated with the new graph's structure.
pub const hipErrorGraphExecUpdateFailure: u32 = 910;

/// The codes with an explanation.
pub const CODES: &[CodeName] = &[
    code(1, "hipErrorInvalidValue", "an argument is out of its range"),
    code(
        hipErrorOutOfMemory,
        "hipErrorOutOfMemory",
        "not enough memory on the device, or page-locked",
    ),
    code(
        3,
        "hipErrorNotInitialized",
        "the HIP runtime did not start (are /dev/kfd and /dev/dri/render* readable by this user?)",
    ),
    code(4, "hipErrorDeinitialized", "the HIP runtime has shut down already"),
    code(9, "hipErrorInvalidConfiguration", "the grid or block is larger than the device takes"),
    code(13, "hipErrorInvalidSymbol", "no such symbol in the code object"),
    code(17, "hipErrorInvalidDevicePointer", "an address that is not of this device"),
    code(
        21,
        "hipErrorInvalidMemcpyDirection",
        "the direction of a copy does not fit its addresses",
    ),
    code(
        35,
        "hipErrorInsufficientDriver",
        "the kernel driver (amdgpu) is older than this ROCm needs",
    ),
    code(53, "hipErrorPriorLaunchFailure", "a kernel before this one failed"),
    code(
        98,
        "hipErrorInvalidDeviceFunction",
        "the function is not in the code object for this device",
    ),
    code(hipErrorNoDevice, "hipErrorNoDevice", "no AMD GPU that this runtime can use"),
    code(
        hipErrorInvalidDevice,
        "hipErrorInvalidDevice",
        "no AMD GPU of that number that this runtime can use",
    ),
    code(hipErrorInvalidImage, "hipErrorInvalidImage", "the code object is damaged"),
    code(201, "hipErrorInvalidContext", "the context is not valid in this thread"),
    code(205, "hipErrorMapFailed", "the memory could not be mapped"),
    code(
        hipErrorNoBinaryForGpu,
        "hipErrorNoBinaryForGpu",
        "the code object is for another architecture than this device's",
    ),
    code(
        hipErrorECCNotCorrectable,
        "hipErrorECCNotCorrectable",
        "the device's memory has an error that cannot be corrected",
    ),
    code(
        217,
        "hipErrorPeerAccessUnsupported",
        "these two devices cannot reach each other's memory",
    ),
    code(hipErrorInvalidKernelFile, "hipErrorInvalidKernelFile", "the bytes are not a code object"),
    code(hipErrorInvalidSource, "hipErrorInvalidSource", "the bytes are not a code object"),
    code(301, "hipErrorFileNotFound", "a file is missing"),
    code(302, "hipErrorSharedObjectSymbolNotFound", "a library that HIP needs lacks a symbol"),
    code(303, "hipErrorSharedObjectInitFailed", "a library that HIP needs does not open"),
    code(
        304,
        "hipErrorOperatingSystem",
        "the operating system refused (limits on locked memory? groups render and video?)",
    ),
    code(400, "hipErrorInvalidHandle", "a stream, event or module that is not valid"),
    code(401, "hipErrorIllegalState", "not allowed in the present state"),
    code(500, "hipErrorNotFound", "no kernel of that name in the code object"),
    code(hipErrorNotReady, "hipErrorNotReady", "work is still under way"),
    code(
        hipErrorIllegalAddress,
        "hipErrorIllegalAddress",
        "a kernel used an address that is not mapped",
    ),
    code(
        701,
        "hipErrorLaunchOutOfResources",
        "the kernel needs more registers or LDS than a block can have",
    ),
    code(hipErrorLaunchTimeOut, "hipErrorLaunchTimeOut", "a kernel ran past the time limit"),
    code(
        hipErrorPeerAccessAlreadyEnabled,
        "hipErrorPeerAccessAlreadyEnabled",
        "peer access is on already",
    ),
    code(705, "hipErrorPeerAccessNotEnabled", "peer access is not on"),
    code(708, "hipErrorSetOnActiveProcess", "too late: the device is in use"),
    code(709, "hipErrorContextIsDestroyed", "the context is gone"),
    code(hipErrorAssert, "hipErrorAssert", "an assertion in a kernel failed"),
    code(712, "hipErrorHostMemoryAlreadyRegistered", "that memory is page-locked already"),
    code(713, "hipErrorHostMemoryNotRegistered", "that memory is not page-locked"),
    code(
        hipErrorLaunchFailure,
        "hipErrorLaunchFailure",
        "a kernel stopped with a fault; the device must be opened anew",
    ),
    code(
        720,
        "hipErrorCooperativeLaunchTooLarge",
        "not all blocks of the grid can be resident at once",
    ),
    code(801, "hipErrorNotSupported", "not supported by this device or runtime"),
    code(900, "hipErrorStreamCaptureUnsupported", "the call cannot be part of a captured graph"),
    code(901, "hipErrorStreamCaptureInvalidated", "an earlier error ended the capture"),
    code(902, "hipErrorStreamCaptureMerge", "two captures would have been merged"),
    code(903, "hipErrorStreamCaptureUnmatched", "the capture was not begun in this stream"),
    code(
        904,
        "hipErrorStreamCaptureUnjoined",
        "a stream forked from the capture was not joined to it",
    ),
    code(905, "hipErrorStreamCaptureIsolation", "a dependency would leave the capture"),
    code(906, "hipErrorStreamCaptureImplicit", "the call would wait for the default stream"),
    code(907, "hipErrorCapturedEvent", "the event belongs to a capture"),
    code(908, "hipErrorStreamCaptureWrongThread", "the capture was begun in another thread"),
    code(
        hipErrorGraphExecUpdateFailure,
        "hipErrorGraphExecUpdateFailure",
        "the graph's shape has changed",
    ),
    code(999, "hipErrorUnknown", "the runtime does not say what happened"),
    code(1052, "hipErrorRuntimeMemory", "the HSA runtime failed in a memory call"),
    code(1053, "hipErrorRuntimeOther", "the HSA runtime failed"),
];
