//! The few messages of NRI that matter here, declared by hand: fields that are not named are skipped, so nothing needs to be
//! generated. Numbers are those of containerd/nri, pkg/api/api.proto (v1alpha1), and of containerd/ttrpc, request.proto.

use prost::Message;
use std::collections::HashMap;

/// `ttrpc.Request`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TtrpcRequest {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) payload: Vec<u8>,
}

/// `ttrpc.Response`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TtrpcResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RpcStatus>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) payload: Vec<u8>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub(super) plugin_name: String,
    #[prost(string, tag = "2")]
    pub(super) plugin_idx: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConfigureRequest {
    #[prost(string, tag = "2")]
    pub(super) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(super) runtime_version: String,
    /// How long an answer may take, in milliseconds; 0 where the runtime does not say.
    #[prost(int64, tag = "5")]
    pub(super) request_timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConfigureResponse {
    #[prost(int32, tag = "2")]
    pub(super) events: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SynchronizeRequest {
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SynchronizeResponse {
    #[prost(bool, tag = "2")]
    pub(super) more: bool,
}

/// Also `StartContainerRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainerRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(super) container: Option<NriContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StateChangeEvent {
    #[prost(int32, tag = "1")]
    pub(super) event: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "3")]
    pub(super) container: Option<NriContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandbox {
    #[prost(map = "string, string", tag = "6")]
    pub(super) annotations: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NriContainer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(map = "string, string", tag = "6")]
    pub(super) annotations: HashMap<String, String>,
    #[prost(string, repeated, tag = "8")]
    pub(super) env: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub(super) mounts: Vec<NriMount>,
    #[prost(message, optional, tag = "11")]
    pub(super) linux: Option<LinuxContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NriMount {
    #[prost(string, tag = "1")]
    pub(super) destination: String,
    #[prost(string, tag = "2")]
    pub(super) r#type: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxContainer {
    #[prost(message, optional, tag = "3")]
    pub(super) resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxResources {
    #[prost(message, optional, tag = "1")]
    pub(super) memory: Option<LinuxMemory>,
    #[prost(message, optional, tag = "2")]
    pub(super) cpu: Option<LinuxCpu>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxMemory {
    #[prost(message, optional, tag = "1")]
    pub(super) limit: Option<OptionalInt64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxCpu {
    #[prost(message, optional, tag = "2")]
    pub(super) quota: Option<OptionalInt64>,
    #[prost(message, optional, tag = "3")]
    pub(super) period: Option<OptionalUInt64>,
    #[prost(string, tag = "6")]
    pub(super) cpus: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct OptionalInt64 {
    #[prost(int64, tag = "1")]
    pub(super) value: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct OptionalUInt64 {
    #[prost(uint64, tag = "1")]
    pub(super) value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainerResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) adjust: Option<ContainerAdjustment>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerAdjustment {
    #[prost(map = "string, string", tag = "2")]
    pub(super) annotations: HashMap<String, String>,
    #[prost(message, repeated, tag = "4")]
    pub(super) env: Vec<KeyValue>,
    #[prost(message, optional, tag = "5")]
    pub(super) hooks: Option<NriHooks>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NriHooks {
    #[prost(message, repeated, tag = "3")]
    pub(super) create_container: Vec<NriHook>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NriHook {
    #[prost(string, tag = "1")]
    pub(super) path: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) args: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub(super) env: Vec<String>,
}
