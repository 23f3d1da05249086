//! Packs an ONNX model: `pack MODEL.onnx PACKED.onnx GROUPS`. Prints the share of its weights that work on tokens without padding.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to), Some(groups)) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: pack MODEL.onnx PACKED.onnx GROUPS".into());
    };
    let packed = trireme_packing::pack(std::fs::read(from)?.into(), groups.parse()?)?;
    std::fs::write(to, &packed.model)?;
    println!("{:.3}", packed.share);
    Ok(())
}
