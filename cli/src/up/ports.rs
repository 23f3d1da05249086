//! The ports of all processes, looked at before any of them starts.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use anyhow::anyhow;
use trireme_gateway::GatewayArgs;

/// The ports, kept until this value is dropped.
pub struct Ports {
    /// Of the gateway, for HTTP; `None` where it does not listen for it.
    pub http: Option<u16>,
    /// For gRPC.
    pub grpc: Option<u16>,
    /// For Prometheus.
    pub metrics: Option<u16>,
    /// Of the broker.
    pub nats: u16,
    _kept: Vec<TcpListener>,
}

// === impl Ports ===

impl Ports {
    /// Takes the ports. The error names the flag of one that is taken.
    pub fn take(gateway: &GatewayArgs, nats: u16) -> anyhow::Result<Ports> {
        let mut kept = Vec::new();
        let mut take = |is_wanted: bool, flag: &str, address: IpAddr, port: u16| -> anyhow::Result<Option<u16>> {
            if !is_wanted {
                return Ok(None);
            }
            let bound = TcpListener::bind((address, port)).and_then(|socket| Ok((socket.local_addr()?.port(), socket)));
            let (port, socket) = bound.map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => anyhow!(
                    "{flag} {port}: another program listens at {address}:{port}; stop it, or name another port (0 takes a free one)"
                ),
                _ => anyhow!("{flag} {port}: cannot listen at {address}:{port}: {error}"),
            })?;
            kept.push(socket);
            Ok(Some(port))
        };
        let (http, grpc, metrics) = (&gateway.http, &gateway.grpc, &gateway.metrics);
        let (http, grpc, metrics) = (
            take(http.allow_http, "--http-port", http.http_address, http.http_port)?,
            take(grpc.allow_grpc, "--grpc-port", grpc.grpc_address, grpc.grpc_port)?,
            take(
                metrics.allow_metrics,
                "--metrics-port",
                metrics.metrics_address.unwrap_or(http.http_address),
                metrics.metrics_port,
            )?,
        );
        let nats = take(true, "--nats-port", Ipv4Addr::LOCALHOST.into(), nats)?.unwrap_or(nats);
        Ok(Ports { http, grpc, metrics, nats, _kept: kept })
    }

    /// The gateway's flags about them.
    pub fn flags(&self) -> impl Iterator<Item = String> {
        let flag = |name, port: Option<u16>| port.map(|port| format!("--{name}-port={port}"));
        [flag("http", self.http), flag("grpc", self.grpc), flag("metrics", self.metrics)].into_iter().flatten()
    }
}

/// A port of the loopback address that is free now.
pub fn free() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
