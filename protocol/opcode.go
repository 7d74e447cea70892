package protocol

// Opcode names what a frame asks for. An answer carries the opcode of its request. Opcodes of
// 0x80 and above are pushed by the broker with request id 0. The numbers are part of the wire
// format and are never reused.
type Opcode uint8

const (
	OpHello           Opcode = 0x01
	OpRegister        Opcode = 0x02
	OpHeartbeat       Opcode = 0x03
	OpUnregister      Opcode = 0x04
	OpSend            Opcode = 0x05
	OpPop             Opcode = 0x06
	OpAck             Opcode = 0x07
	OpChangeInvisible Opcode = 0x08
	OpReject          Opcode = 0x09 // answers UNSUPPORTED
	OpPull            Opcode = 0x0a // answers UNSUPPORTED
	OpCommitOffset    Opcode = 0x0b // answers UNSUPPORTED
	OpQueryOffset     Opcode = 0x0c // answers UNSUPPORTED
	OpRecall          Opcode = 0x0d // answers UNSUPPORTED
	OpPeek            Opcode = 0x0e

	OpCreateTopic Opcode = 0x20
	OpUpdateTopic Opcode = 0x21
	OpDeleteTopic Opcode = 0x22
	OpListTopics  Opcode = 0x23
	OpPurgeTopic  Opcode = 0x24
	OpCreateGroup Opcode = 0x28
	OpUpdateGroup Opcode = 0x29
	OpDeleteGroup Opcode = 0x2a
	OpListGroups  Opcode = 0x2b
	OpShowGroup   Opcode = 0x2c
	OpStats       Opcode = 0x30

	// OpSessionEnded is pushed to a connection when a session named on it has ended (body: SessionEnded).
	OpSessionEnded Opcode = 0x80
	// OpDrain is pushed when the broker has begun an orderly stop (no body).
	OpDrain Opcode = 0x81
	// OpGoodbye is the last frame of a connection that the broker closes: the status of its header and
	// the text of its body (ErrorBody) say why.
	OpGoodbye Opcode = 0x8f
)
