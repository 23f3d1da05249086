//! The methods that are served: what access rules, limits and the reading of messages know of each.

use trireme_protocol::grpc::health::health_server;
use trireme_protocol::grpc::tei::embed_server;
use trireme_protocol::grpc::tei::info_server;
use trireme_protocol::grpc::tei::predict_server;
use trireme_protocol::grpc::tei::rerank_server;
use trireme_protocol::grpc::tei::tokenize_server;
use trireme_protocol::grpc::wire::grpc_inference_service_server;
use trireme_server::Traffic;
use trireme_server::access::Category;

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
    /// Whether a client may send several messages on one call.
    pub streams: bool,
}

/// The services that clients of this server's interfaces call.
pub const SERVICES: &[Service] = &[
    Service {
        name: grpc_inference_service_server::SERVICE_NAME,
        methods: &[
            one("ServerLive", Category::Health),
            one("ServerReady", Category::Health),
            one("ModelReady", Category::Health),
            one("ServerMetadata", Category::Metadata),
            one("ModelMetadata", Category::Metadata),
            one("ModelConfig", Category::ModelConfig),
            one("ModelInfer", Category::Inference),
            many("ModelStreamInfer", Category::Inference),
            one("ModelStatistics", Category::Statistics),
            one("RepositoryIndex", Category::ModelRepository),
            one("RepositoryModelLoad", Category::ModelRepository),
            one("RepositoryModelUnload", Category::ModelRepository),
            one("SystemSharedMemoryStatus", Category::SharedMemory),
            one("SystemSharedMemoryRegister", Category::SharedMemory),
            one("SystemSharedMemoryUnregister", Category::SharedMemory),
            one("CudaSharedMemoryStatus", Category::SharedMemory),
            one("CudaSharedMemoryRegister", Category::SharedMemory),
            one("CudaSharedMemoryUnregister", Category::SharedMemory),
            one("TraceSetting", Category::Trace),
            one("LogSettings", Category::Logging),
        ],
    },
    Service {
        name: health_server::SERVICE_NAME,
        methods: &[one("Check", Category::Health), Method { name: "Watch", category: None, streams: false }],
    },
    Service { name: info_server::SERVICE_NAME, methods: &[one("Info", Category::Metadata)] },
    Service {
        name: embed_server::SERVICE_NAME,
        methods: &[
            one("Embed", Category::Inference),
            many("EmbedStream", Category::Inference),
            one("EmbedSparse", Category::Inference),
            many("EmbedSparseStream", Category::Inference),
            one("EmbedAll", Category::Inference),
            many("EmbedAllStream", Category::Inference),
        ],
    },
    Service {
        name: predict_server::SERVICE_NAME,
        methods: &[
            one("Predict", Category::Inference),
            one("PredictPair", Category::Inference),
            many("PredictStream", Category::Inference),
            many("PredictPairStream", Category::Inference),
        ],
    },
    Service {
        name: rerank_server::SERVICE_NAME,
        methods: &[one("Rerank", Category::Inference), many("RerankStream", Category::Inference)],
    },
    Service {
        name: tokenize_server::SERVICE_NAME,
        methods: &[
            one("Tokenize", Category::Inference),
            many("TokenizeStream", Category::Inference),
            one("Decode", Category::Inference),
            many("DecodeStream", Category::Inference),
        ],
    },
];

/// Server reflection, in the version that is current and the one that older clients ask for.
const REFLECTION: &[Service] = &[
    Service { name: "grpc.reflection.v1.ServerReflection", methods: REFLECTION_METHODS },
    Service { name: "grpc.reflection.v1alpha.ServerReflection", methods: REFLECTION_METHODS },
];
const REFLECTION_METHODS: &[Method] = &[many("ServerReflectionInfo", Category::Metadata)];

/// A method that takes one message.
const fn one(name: &'static str, category: Category) -> Method {
    Method { name, category: Some(category), streams: false }
}

/// A method that takes any number of messages.
const fn many(name: &'static str, category: Category) -> Method {
    Method { name, category: Some(category), streams: true }
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
    /// The traffic that its calls belong to.
    pub fn traffic(&self) -> Traffic {
        match self.category {
            Some(Category::Inference) => Traffic::Work,
            Some(Category::Health) => Traffic::Watch,
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
