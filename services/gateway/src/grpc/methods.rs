//! The methods that are served: what access rules, limits and the reading of messages know of each.

use trireme_server::Traffic;
use trireme_server::access::Category::{
    self, Health, Inference, Logging, Metadata, ModelConfig, ModelRepository, SharedMemory, Statistics, Trace,
};
use trireme_server::access::{Changes, Rule};

/// A service with its methods.
pub struct Service {
    /// Its name, with its package.
    pub name: &'static str,
    /// Its methods, in the order of its interface.
    pub methods: &'static [Method],
}

/// A method of a service.
#[derive(Debug)]
pub struct Method {
    pub name: &'static str,
    /// The category that access rules know its calls by; `None`: it is not offered.
    pub category: Option<Category>,
    /// Whether its calls change the server.
    pub changes: Changes,
    /// Whether a client may send several messages on one call.
    pub streams: bool,
}

/// The services that clients of this server's interfaces call.
pub const SERVICES: &[Service] = &[
    service(
        "inference.GRPCInferenceService",
        &[
            one("ServerLive", Health),
            one("ServerReady", Health),
            one("ModelReady", Health),
            one("ServerMetadata", Metadata),
            one("ModelMetadata", Metadata),
            one("ModelConfig", ModelConfig),
            one("ModelInfer", Inference),
            many("ModelStreamInfer", Inference),
            one("ModelStatistics", Statistics),
            one("RepositoryIndex", ModelRepository),
            one("RepositoryModelLoad", ModelRepository).changes(Changes::Always),
            one("RepositoryModelUnload", ModelRepository).changes(Changes::Always),
            one("SystemSharedMemoryStatus", SharedMemory),
            one("SystemSharedMemoryRegister", SharedMemory).changes(Changes::Always),
            one("SystemSharedMemoryUnregister", SharedMemory).changes(Changes::Always),
            one("CudaSharedMemoryStatus", SharedMemory),
            one("CudaSharedMemoryRegister", SharedMemory).changes(Changes::Always),
            one("CudaSharedMemoryUnregister", SharedMemory).changes(Changes::Always),
            one("TraceSetting", Trace).changes(Changes::ByMessage),
            one("LogSettings", Logging).changes(Changes::ByMessage),
        ],
    ),
    service("grpc.health.v1.Health", &[one("Check", Health), Method { category: None, ..one("Watch", Health) }]),
    service("tei.v1.Info", &[one("Info", Metadata)]),
    service(
        "tei.v1.Embed",
        &[
            one("Embed", Inference),
            many("EmbedStream", Inference),
            one("EmbedSparse", Inference),
            many("EmbedSparseStream", Inference),
            one("EmbedAll", Inference),
            many("EmbedAllStream", Inference),
        ],
    ),
    service(
        "tei.v1.Predict",
        &[
            one("Predict", Inference),
            one("PredictPair", Inference),
            many("PredictStream", Inference),
            many("PredictPairStream", Inference),
        ],
    ),
    service("tei.v1.Rerank", &[one("Rerank", Inference), many("RerankStream", Inference)]),
    service(
        "tei.v1.Tokenize",
        &[
            one("Tokenize", Inference),
            many("TokenizeStream", Inference),
            one("Decode", Inference),
            many("DecodeStream", Inference),
        ],
    ),
];

/// Server reflection, in the version that is current and the one that older clients ask for.
const REFLECTION: &[Service] = &[
    service("grpc.reflection.v1.ServerReflection", &[many("ServerReflectionInfo", Metadata)]),
    service("grpc.reflection.v1alpha.ServerReflection", &[many("ServerReflectionInfo", Metadata)]),
];

const fn service(name: &'static str, methods: &'static [Method]) -> Service {
    Service { name, methods }
}

/// A method that takes one message.
const fn one(name: &'static str, category: Category) -> Method {
    Method { name, category: Some(category), changes: Changes::Never, streams: false }
}

/// A method that takes any number of messages.
const fn many(name: &'static str, category: Category) -> Method {
    Method { streams: true, ..one(name, category) }
}

/// The service that a path names, and the name of the method; `None` where there is no such service.
pub fn called(path: &str) -> Option<(&'static Service, &str)> {
    let (name, method) = path.trim_start_matches('/').split_once('/')?;
    let service = SERVICES.iter().chain(REFLECTION).find(|service| service.name == name)?;
    Some((service, method))
}

/// The method that a path names.
pub fn find(path: &str) -> Option<&'static Method> {
    let (service, name) = called(path)?;
    service.methods.iter().find(|method| method.name == name)
}

// === impl Method ===

impl Method {
    /// The same with calls that change the server.
    const fn changes(self, changes: Changes) -> Method {
        Method { changes, ..self }
    }

    /// The rule for its calls.
    pub fn rule(&self) -> Rule {
        Rule { category: self.category, changes: self.changes }
    }

    /// The traffic that its calls belong to.
    pub fn traffic(&self) -> Traffic {
        match self.category {
            Some(Inference) => Traffic::Work,
            Some(Health) => Traffic::Watch,
            _ => Traffic::Server,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::FileDescriptorSet;
    use trireme_protocol::grpc::DESCRIPTORS;

    use super::*;

    #[test]
    fn every_method_of_the_interfaces_has_its_row() {
        let of_reflection =
            [tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET, tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET];
        let mut described = Vec::new();
        for set in [DESCRIPTORS].into_iter().chain(of_reflection) {
            for file in FileDescriptorSet::decode(set).expect("descriptors").file {
                for service in &file.service {
                    let row = |method: &prost_types::MethodDescriptorProto| {
                        (method.name().to_owned(), method.client_streaming())
                    };
                    let name = format!("{}.{}", file.package(), service.name());
                    described.push((name, service.method.iter().map(row).collect::<Vec<_>>()));
                }
            }
        }
        let row = |method: &Method| (method.name.to_owned(), method.streams);
        let row = |service: &Service| (service.name.to_owned(), service.methods.iter().map(row).collect::<Vec<_>>());
        let mut served: Vec<_> = SERVICES.iter().chain(REFLECTION).map(row).collect();
        described.sort();
        served.sort();
        assert_eq!(served, described);
    }

    #[test]
    fn a_method_is_found_by_its_path() {
        let found = |path: &str| find(path).map(|method| (method.name, method.traffic()));
        assert_eq!(found("/inference.GRPCInferenceService/ModelInfer"), Some(("ModelInfer", Traffic::Work)));
        assert_eq!(found("/grpc.health.v1.Health/Check"), Some(("Check", Traffic::Watch)));
        assert_eq!(found("/tei.v1.Info/Info"), Some(("Info", Traffic::Server)));
        for path in ["", "/", "/ModelInfer", "/x/ModelInfer", "/tei.v1.Embed/ModelInfer", "/tei.v1.Embed/Embed/x"] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
