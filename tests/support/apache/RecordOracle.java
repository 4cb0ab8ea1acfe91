/**
 * What Kafka's own Java classes make of records, for tests of our codec.
 *
 * Compiled at run time by Janino (it comes with Spark), since a Java runtime has no compiler;
 * hence no lambdas and casts instead of generics. Records travel as one array of bytes each
 * way, so that a test costs one call: count, then for each record offset, timestamp, key,
 * value, header count, and key and value of each header; lengths are ints, -1 for null.
 */
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;

public class RecordOracle {

    /** One batch of these records, as a Java producer would send it. */
    public static byte[] encode(byte[] packed, int codec, long baseOffset, long producerId,
            int producerEpoch, int baseSequence, boolean isTransactional) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(packed));
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(1024), (byte) 2,
            Compression.of(CompressionType.forId(codec)).build(), TimestampType.CREATE_TIME,
            baseOffset, -1L, producerId, (short) producerEpoch, baseSequence, isTransactional, -1);
        int count = in.readInt();
        for (int n = 0; n < count; n++) {
            long offset = in.readLong();
            long timestamp = in.readLong();
            ByteBuffer key = wrap(readBytes(in));
            ByteBuffer value = wrap(readBytes(in));
            Header[] headers = new Header[in.readInt()];
            for (int h = 0; h < headers.length; h++) {
                String name = new String(readBytes(in), StandardCharsets.UTF_8);
                headers[h] = new RecordHeader(name, readBytes(in));
            }
            builder.appendWithOffset(offset, timestamp, key, value, headers);
        }
        return bytesOf(builder.build().buffer());
    }

    /** The records of all batches, after Kafka's own checks of length and CRC. */
    public static byte[] decode(byte[] batches) throws IOException {
        ByteArrayOutputStream records = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(records);
        int count = 0;
        Iterator each = MemoryRecords.readableRecords(ByteBuffer.wrap(batches)).batchIterator();
        while (each.hasNext()) {
            MutableRecordBatch batch = (MutableRecordBatch) each.next();
            batch.ensureValid();
            Iterator inside = batch.iterator();
            while (inside.hasNext()) {
                write(out, (Record) inside.next());
                count++;
            }
        }
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        new DataOutputStream(all).writeInt(count);
        records.writeTo(all);
        return all.toByteArray();
    }

    /** The header fields of the first batch, by name. */
    public static String describe(byte[] batches) {
        MutableRecordBatch batch = (MutableRecordBatch)
            MemoryRecords.readableRecords(ByteBuffer.wrap(batches)).batchIterator().next();
        return "base_offset=" + batch.baseOffset() + " last_offset=" + batch.lastOffset()
            + " size=" + batch.sizeInBytes() + " leader_epoch=" + batch.partitionLeaderEpoch()
            + " magic=" + batch.magic() + " crc=" + batch.checksum()
            + " codec=" + batch.compressionType().id
            + " timestamp_type=" + batch.timestampType().id
            + " max_timestamp=" + batch.maxTimestamp() + " producer_id=" + batch.producerId()
            + " producer_epoch=" + batch.producerEpoch()
            + " base_sequence=" + batch.baseSequence()
            + " last_sequence=" + batch.lastSequence()
            + " is_transactional=" + batch.isTransactional()
            + " is_control=" + batch.isControlBatch()
            + " record_count=" + batch.countOrNull();
    }

    /** The marker that a broker writes at the end of a transaction. */
    public static byte[] encodeMarker(boolean commit, long offset, long timestamp, long producerId,
            int producerEpoch, int coordinatorEpoch) {
        ControlRecordType type = commit ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        return bytesOf(MemoryRecords.withEndTransactionMarker(offset, timestamp, -1, producerId,
            (short) producerEpoch, new EndTransactionMarker(type, coordinatorEpoch)).buffer());
    }

    /** What the marker in a control batch says. */
    public static String decodeMarker(byte[] batches) {
        MutableRecordBatch batch = (MutableRecordBatch)
            MemoryRecords.readableRecords(ByteBuffer.wrap(batches)).batchIterator().next();
        batch.ensureValid();
        EndTransactionMarker marker =
            EndTransactionMarker.deserialize((Record) batch.iterator().next());
        return marker.controlType() + " " + marker.coordinatorEpoch();
    }

    private static void write(DataOutputStream out, Record record) throws IOException {
        out.writeLong(record.offset());
        out.writeLong(record.timestamp());
        writeBytes(out, record.hasKey() ? bytesOf(record.key()) : null);
        writeBytes(out, record.hasValue() ? bytesOf(record.value()) : null);
        Header[] headers = record.headers();
        out.writeInt(headers.length);
        for (int h = 0; h < headers.length; h++) {
            writeBytes(out, headers[h].key().getBytes(StandardCharsets.UTF_8));
            writeBytes(out, headers[h].value());
        }
    }

    private static void writeBytes(DataOutputStream out, byte[] bytes) throws IOException {
        out.writeInt(bytes == null ? -1 : bytes.length);
        if (bytes != null) {
            out.write(bytes);
        }
    }

    private static byte[] readBytes(DataInputStream in) throws IOException {
        int length = in.readInt();
        if (length < 0) {
            return null;
        }
        byte[] bytes = new byte[length];
        in.readFully(bytes);
        return bytes;
    }

    private static ByteBuffer wrap(byte[] bytes) {
        return bytes == null ? null : ByteBuffer.wrap(bytes);
    }

    private static byte[] bytesOf(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        ByteBuffer copy = (ByteBuffer) buffer.duplicate();
        copy.get(bytes);
        return bytes;
    }
}
